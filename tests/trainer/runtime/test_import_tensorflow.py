import gc
import subprocess
import sys

import pytest

from trainer.runtime.import_tensorflow import without_collections

# A garbage collection costs the more, the more objects there are, so this
# counts them: seconds depend on what else the machine does.
_PROGRAM = """
import gc
import sys

started = []
gc.callbacks.append(
    lambda phase, info: phase == "start" and started.append(info)
)
from trainer.runtime.import_tensorflow import load_tensorflow

before = len(started)
load_tensorflow()
assert "tensorflow" in sys.modules
print(len(started) - before, gc.isenabled())
"""
_PACKAGE = "kept = [[number] for number in range(100_000)]\n"


@pytest.mark.usefixtures("plain_starts")
def test_an_import_is_not_interrupted_by_the_garbage_collector(tmp_path, root):
    package = tmp_path / "tensorflow"
    package.mkdir()
    package.joinpath("__init__.py").write_text(_PACKAGE)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    collections, is_enabled = done.stdout.split()
    # With the collector at work more than 100, and few beside the import.
    assert int(collections) < 10
    assert is_enabled == "True"


@pytest.mark.parametrize("freeze", [False, True])
def test_the_collector_goes_on_as_before(freeze):
    before = gc.get_freeze_count()
    with without_collections(freeze=freeze):
        assert not gc.isenabled()
    assert gc.isenabled()
    assert (gc.get_freeze_count() > before) == freeze
    gc.disable()
    try:
        with pytest.raises(KeyError, match="x"), without_collections():
            raise KeyError("x")
        assert not gc.isenabled()
    finally:
        gc.enable()
