import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import tensorflow as tf

from tests.sets import one_in
from tests.trainer.cli.tiny import TINY
from trainer.runtime import exit_report
from trainer.runtime.exit_report import ExitReport, headline

CLI = pathlib.Path(__file__).parent.with_name("cli")


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    monkeypatch.setenv(exit_report.VARIABLE, str(path))
    return path


def test_what_is_written_is_read_by_who_knows_the_process(path):
    report = ExitReport()
    report.begin(types.SimpleNamespace(step=40))
    report.write(1, ValueError("no\nmore"))
    expected = {"exit_code": 1, "error": "ValueError: no", "step": 40}
    found = exit_report.read(str(path), pid=os.getpid())
    assert found == expected | {"pid": os.getpid()}
    assert exit_report.read(str(path), pid=1) == {}
    assert os.listdir(path.parent) == [path.name]


def test_the_report_is_there_from_the_first_step_on(path):
    """The launcher lets such a process leave by itself: it may save."""
    report = ExitReport()
    assert exit_report.read(str(path), pid=os.getpid()) == {}
    report.begin(types.SimpleNamespace(step=0))
    found = exit_report.read(str(path), pid=os.getpid())
    assert found == {
        "pid": os.getpid(),
        "exit_code": None,
        "error": None,
        "step": 0,
    }


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_what_is_no_report_is_empty(path, text):
    assert exit_report.read(str(path), pid=1) == {}
    path.write_text(text)
    assert exit_report.read(str(path), pid=1) == {}


def test_a_report_that_cannot_be_written_hides_nothing(monkeypatch):
    monkeypatch.setenv(exit_report.VARIABLE, "/proc/none/report.json")
    ExitReport().write(1, ValueError("no"))
    monkeypatch.delenv(exit_report.VARIABLE)
    ExitReport().write(1, ValueError("no"))


def test_the_headline_is_the_same_in_every_run():
    def at(address):
        return headline(ValueError(f"\n <object at {address}> is no\nmore"))

    assert (
        at("0x7f01ab")
        == at("0x7f02cd")
        == ("ValueError: <object at 0x...> is no")
    )
    assert headline(KeyError()) == "KeyError"
    assert len(headline(ValueError("x" * 9999))) == 300


def test_the_headline_of_a_traced_function_says_something():
    @tf.function
    def traced(x):
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason") as error:
        traced(1.0)
    assert str(error.value).startswith("in user code:")
    assert headline(error.value) == "ValueError: the reason"


def test_the_headline_of_an_operation_names_it():
    @tf.function
    def checked(x):
        return tf.debugging.check_numerics(x, "the reason")

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        checked(tf.constant(float("nan")))
    assert "CheckNumerics" in headline(error.value)


@pytest.mark.parametrize(
    ("arguments", "code", "error", "step"),
    one_in(
        2,
        [
            ([], 0, None, 8),
            (["--batch_size=0"], 2, "UserError: --batch_size=0", None),
            (
                ["--gin.run.callbacks=[@Fails()]"],
                1,
                "ZeroDivisionError: a bug",
                4,
            ),
            (
                ["--gin.Trainer.data=@preempted"],
                75,
                "StartAgain: preempted",
                None,
            ),
        ],
    ),
)
def test_every_run_reports_its_end(path, arguments, code, error, step):
    (path.parent / "tiny.gin").write_text(TINY)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "trainer", "--gin_file=tiny.gin"),
            *arguments,
        ],
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(CLI), "FAIL_WITH": "bug"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == code, stderr
    found = json.loads(path.read_text())
    assert (found["pid"], found["exit_code"]) == (process.pid, code)
    assert found["step"] == step
    if error is None:
        assert found["error"] is None
    else:
        assert found["error"].startswith(error)
