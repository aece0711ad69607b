import os
import sys

import gin
import pytest

from trainer.cli import flags
from trainer.cli.config import reader
from trainer.cli.main import register
from trainer.python import brief

HERE = os.path.dirname(__file__)


@pytest.fixture(autouse=True)
def clean_gin(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Reads gin text and flags as the command line does; gives origins."""
    monkeypatch.setitem(brief._state, "is_on", False)

    def read(text="", *arguments):
        path = tmp_path / "given.gin"
        path.write_text(text)
        request = flags.parse([f"--gin_file={path}", *arguments])
        register()
        return reader.load([str(path)], request.bindings)

    yield read
    for name in [n for n in sys.modules if n.startswith("made_by_test")]:
        del sys.modules[name]
