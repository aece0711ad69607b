"""`python -m trainer.tools.new`: what it writes trains, and passes its test."""

import os
import pathlib
import runpy
import subprocess
import sys
import unittest.mock

import pytest

from tests.conftest import ROOT
from tests.test_package import build_wheel


def main(arguments):
    """The exit code of the tool, as `python -m` runs it here."""
    argv = ["new", *arguments]
    with (
        unittest.mock.patch.object(sys, "argv", argv),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_module("trainer.tools.new", run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "Give one name"),
        (["my-project"], "Did you mean 'my_project'?"),
        (["class"], "cannot be the name"),
        (["json"], "installed already"),
        (["tests"], "Choose another"),
    ],
)
def test_mistakes_are_a_sentence(
    tmp_path, monkeypatch, capsys, arguments, part
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert part in said
    assert os.listdir(tmp_path) == ["there"]


@pytest.fixture
def environment(tmp_path):
    """A fresh environment with this project's wheel, and what it needs."""
    home = tmp_path / "environment"
    command = [sys.executable, "-m", "venv", "--without-pip", home]
    subprocess.run(command, check=True)
    (site,) = home.glob("lib/python*/site-packages")
    # Only what is installed: an editable project is found by a hook instead,
    # and the wheel must not be hidden by it.
    there = [p for p in sys.path if pathlib.Path(p).name == "site-packages"]
    (site / "base.pth").write_text("\n".join(there))
    install(home, build_wheel(tmp_path / "wheel"))
    return home


def install(home, *packages):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", f"--python={home}/bin/python"),
            *("install", "--quiet", "--no-deps", "--force-reinstall"),
            *map(str, packages),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
@pytest.mark.usefixtures("plain_starts")
def test_a_project_runs_in_a_fresh_environment(environment, tmp_path):
    def run(*command, cwd):
        path = f"{environment}/bin:{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**clean, "PATH": path},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done.stdout

    python = f"{environment}/bin/python"
    said = run(python, "-c", "import trainer; print(trainer.__file__)", cwd="/")
    assert said.startswith(str(environment))
    run(python, "-m", "trainer.tools.new", "spirals", cwd=tmp_path)
    project = tmp_path / "spirals"
    for command in (["check"], ["format", "--check"]):
        run(
            *(sys.executable, "-m", "ruff", *command),
            *("--config", str(ROOT / "pyproject.toml"), "."),
            cwd=project,
        )
    install(environment, project)
    # By its entry points, and not because it is the current folder.
    home = tmp_path / "elsewhere"
    home.mkdir()
    run(
        *(f"{environment}/bin/spirals", "--model_dir=first"),
        "--train_steps=20",
        cwd=home,
    )
    assert (home / "first" / "checkpoints" / "step_00000020").is_dir()
    run(python, "-m", "pytest", "-q", "tests", cwd=project)
