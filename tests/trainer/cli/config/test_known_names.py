import os
import pathlib
import subprocess
import sys

import gin
import pytest

from trainer.cli import flags
from trainer.cli.config import gin_private, known_names, reader
from trainer.cli.main import _register
from trainer.errors import UserError
from trainer.strategy.registry import strategies

GIN = """
import {module}
steps = 5
Trainer.seed = 3
Trainer.learning_rate = 0.1
run.train_steps = %steps
known_net.width = 4
scope/known_net.width = 8
"""
MODULE = """
import gin
from trainer.plugin_api import Natural, configurable

@configurable
def known_net(width: Natural = 3, **more):
    return width
"""
MISTAKES = [
    "--gin.Adam.lr=1",
    "--gin.Adm.learning_rate=1",
    "--gin.Adam.learning_rate=-0.5",
    "--gin.Adam.beta_1='high'",
    "--gin.Adam.amsgrad=2",
    "--gin.Trainer.seed=-1",
    "--gin.Trainer.batch_sise=3",
    "--gin.run.model_dir='x'",
    "--gin.known_net.width=-3",
    "--gin.known_net.widht=3",
    "--gin.scope/known_net.width='3'",
    "--gin.steps=0",
    "--gin.run.train_steps=%stepps",
    "--gin.run.train_steps=[1",
    "--gin.run.train_steps=many",
    "--gin.Trainer.data=@no_data",
    "--gin.EarlyStopping=1",
    "--gin_param=Mean.name=''",
    "--batch_size=8",
    "--gin.run.callbacks=3",
]


def environ():
    """That of all phases of a test; pytest notes there which one it is."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}


@pytest.fixture
def start(tmp_path, tmp_path_factory, monkeypatch):
    """A start whose names are kept; returns what reads flags against them."""
    name = f"known_module_{os.path.basename(tmp_path)}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    path = tmp_path / "given.gin"
    path.write_text(GIN.format(module=name))
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(known_names, "_ENVIRON", known_names._shared(environ()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _register()
    gin.clear_config(clear_constants=True)
    recorder = known_names.Recorder([str(path)])
    reader.load([str(path)], importer=recorder.import_module)
    recorder.store(strategies())
    gin.clear_config()

    def find(*arguments, is_run=True):
        request = flags.parse([f"--gin_file={path}", *arguments])
        return known_names.find_mistakes(
            [str(path)], request.bindings, search_path=(), is_run=is_run
        )

    yield path, find
    gin.clear_config()
    del sys.modules[name]
    gin_private.gin_config._REGISTRY.pop(f"{name}.known_net")


def _said(function, *arguments):
    try:
        function(*arguments)
    except UserError as error:
        return str(error)
    finally:
        gin.clear_config()
    return None


def test_says_what_the_start_would_say(start):
    path, find = start

    def load(flag):
        reader.load(
            [str(path)], flags.parse([flag, f"--gin_file={path}"]).bindings
        )

    said = {flag: (_said(find, flag), _said(load, flag)) for flag in MISTAKES}
    # What only objects tell is left to the start, and nothing else is.
    later = {flag for flag, (early, late) in said.items() if not early and late}
    assert later == {"--gin.run.callbacks=3", "--gin.steps=0"}
    for flag, (early, late) in said.items():
        assert early in (late, None), flag
    assert said["--batch_size=8"] == (None, None)
    assert "Did you mean 'learning_rate'" in said["--gin.Adam.lr=1"][0]


def test_a_strategy_that_there_is_not(start):
    _, find = start
    assert find("--strategy=mirrored")
    with pytest.raises(UserError, match="Unknown strategy 'mirorred'"):
        find("--strategy=mirorred")
    assert find("--strategy=mirorred", is_run=False)


def test_the_text_is_that_of_gin(start):
    path, find = start
    reader.load([str(path)])
    text = gin.config_str()
    gin.clear_config()
    assert find() == text
    assert find("--gin.known_net.width=9") == text.replace(
        "\nknown_net.width = 4", "\nknown_net.width = 9"
    )
    # Valid, but not known to be.
    assert find("--gin.Trainer.data=@known_net") is None
    assert find("--gin.steps=6") is None


@pytest.mark.parametrize("change", ["module", "import", "damage", "environ"])
def test_what_has_changed_is_left_to_the_start(start, change, monkeypatch):
    path, find = start
    assert find()
    if change == "module":
        module = next(path.parent.glob("known_module*.py"))
        module.write_text(MODULE.replace("width", "depth"))
        os.utime(module, (1, 1))
    elif change == "import":
        path.write_text("import json\nknown_net.width = 3\n")
    elif change == "environ":
        monkeypatch.setattr(known_names, "_ENVIRON", ["LARGE=1"])
    else:
        (cache,) = pathlib.Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")
        cache.write_bytes(cache.read_bytes()[:1000])
    assert not find("--gin.known_net.width=-3")


def test_syntax_takes_no_earlier_start(start, tmp_path):
    path, find = start
    (kept,) = pathlib.Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")
    kept.unlink()
    assert find("--gin.known_net.widht=@Nobody", "--batch_size=3") is None
    (tmp_path / "inner.gin").write_text("a.b = 3\n\nknown_net.width 4\n")
    path.write_text("import nobody\ninclude 'inner.gin'\nx = %y\n")
    with pytest.raises(UserError, match=r"inner.gin, line 3: "):
        find()
    path.write_text("x = @Nobody\ny = no\n")
    with pytest.raises(
        UserError, match=r"given.gin, line 2: no is not a value"
    ):
        find()
    path.write_text("")
    with pytest.raises(UserError, match="bracket or quote is not closed"):
        find("--gin.x=[1")


@pytest.mark.usefixtures("plain_starts")
def test_is_told_without_tensorflow(start):
    path, _ = start
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from trainer.cli.main import main; "
        f"main(['--gin_file={path}', '--mode=print_config']); "
        f"code = main(['--gin_file={path}', '--gin.known_net.widht=-1']); "
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules))); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ(),
        capture_output=True,
        text=True,
    )
    assert "has no parameter 'widht'" in done.stderr
    assert done.returncode == 2
    assert "known_net.width = 4" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
