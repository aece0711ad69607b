"""`python -m trainer`, as a user starts it."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.sets import one_in
from tests.trainer.cli.tiny import TINY
from tests.trainer.cli.tiny import run_trainer as trainer


def record(folder):
    return json.loads((folder / "run.json").read_text())


def stored(folder):
    """Makes a directory that holds a run of the experiment "other"."""
    folder.mkdir()
    (folder / "run.json").write_text('{"experiment": "other"}')


@pytest.mark.parametrize(
    ("text", "arguments", "parts"),
    [
        ("", ["--gin_file=tinny.gin"], ["tinny.gin", "'tiny.gin'"]),
        ("", ["--mode=trane"], ["trane", "'train'"]),
        ("", ["--batch_size=0"], ["--batch_size=0"]),
        ("Adam.beta_1 = 0..5", [], ["tiny.gin, line 1"]),
        ("Adm.beta_1 = 0.5", [], ["tiny.gin, line 1", "'Adam'"]),
        ("Adam.beta1 = 0.5", [], ["tiny.gin, line 1", "'beta_1'"]),
        (TINY, ["--strategy=mirored"], ["'mirored'", "'mirrored'"]),
        (TINY, ["--gin.Adam.beta_1=0.5"], ["--gin.Adam.beta_1=0.5"]),
        (TINY + "widht = 3\n", [], ["widht", "tiny.gin, line 10"]),
        (TINY + "Trainer.batch_size = 0\n", [], ["batch_size"]),
        (
            TINY + "SGD.learning_rate = 1\n",
            [],
            ["SGD.learning_rate = 1", "tiny.gin, line 10"],
        ),
        (TINY, ["--model_dir=other"], ["other", "'tiny'"]),
        (TINY, ["--model_dir=tiny.gin/run"], ["tiny.gin/run", "a file"]),
        (TINY, ["--model_dir=/proc/run"], ["/proc/run", "written"]),
        (
            TINY + "run.callbacks = [@Checkpoint(), @JsonLines()]\n",
            ["--model_dir=/sys/run"],
            ["/sys/run", "written"],
        ),
        (TINY, ["--mode=eval", "--model_dir=none"], ["none", "no run"]),
    ],
)
def test_mistakes_end_with_2_and_a_sentence(tmp_path, text, arguments, parts):
    stored(tmp_path / "other")
    done = trainer(tmp_path, *arguments, text=text)
    said = done.stderr
    assert done.returncode == 2, said
    lines = said.splitlines()
    assert 1 <= len(lines) <= 3, said
    assert lines[0].startswith("error: ")
    assert "Traceback" not in said
    assert all(part in said for part in parts), said
    assert not (tmp_path / "runs").exists()


def test_a_run_leaves_its_record_and_goes_on(tmp_path):
    run = tmp_path / "run"
    done = trainer(tmp_path, "--model_dir=run", "--learning_rate=0.25")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "model_dir: run"
    assert "Trainer.learning_rate = 0.25" in (run / "config.gin").read_text()
    operative = (run / "operative_config.gin").read_text()
    assert "cli_tiny_experiment.sums.size = 64" in operative or (
        "\nsums.size = 64" in operative
    )
    again = trainer(tmp_path, "--model_dir=run", "--train_steps=10")
    assert again.returncode == 0, again.stderr
    assert record(run)["restarts"] == 1
    assert "- Trainer.learning_rate = 0.25" in again.stderr


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    one_in(
        2,
        [
            ("start_again", 75, "start_again"),
            ("interrupt", 130, "interrupted"),
            ("user_error", 2, "user_error"),
            ("bug", 1, "error"),
        ],
    ),
)
def test_exit_codes_and_reasons(tmp_path, kind, code, reason):
    done = trainer(
        tmp_path,
        "--model_dir=run",
        text=TINY + "run.callbacks = [@Fails()]\n",
        FAIL_WITH=kind,
    )
    assert done.returncode == code, done.stderr
    assert record(tmp_path / "run")["exit_reason"] == reason
    assert ("Traceback" in done.stderr) == (kind == "bug")
    how = "nothing was saved; start again with: python -m trainer --gin_file="
    assert (how in done.stderr) == (code in (75, 130))


def test_a_bug_in_user_code_keeps_its_traceback(tmp_path):
    text = TINY.replace("@linear", "@broken_model")
    done = trainer(tmp_path, text=text + "broken_model.units = -3\n")
    assert done.returncode == 1
    assert "cli_tiny_experiment.py" in done.stderr


def test_check_builds_and_writes_nothing(tmp_path):
    done = trainer(tmp_path, "--mode=check")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ parameters +5 *$", done.stdout, re.MULTILINE)
    assert os.listdir(tmp_path) == ["tiny.gin"]


def test_absl_flags_of_a_module_keep_their_defaults(tmp_path):
    (tmp_path / "own_flags.py").write_text(
        "from absl import flags\nimport gin, cli_tiny_experiment\n"
        "UNITS = flags.DEFINE_integer('own_units', 1, 'Units.')\n"
        "@gin.configurable\ndef own_model():\n"
        "    return cli_tiny_experiment.linear(UNITS.value)\n"
    )
    text = f"import own_flags\n{TINY}Trainer.model = @own_model\n"
    done = trainer(tmp_path, "--mode=check", text=text)
    assert done.returncode == 0, done.stderr


def test_print_config_is_the_merged_configuration(tmp_path):
    done = trainer(tmp_path, "--mode=print_config", "--seed=3")
    assert done.returncode == 0, done.stderr
    assert "Trainer.seed = 3" in done.stdout
    assert "Trainer.batch_size = 16" in done.stdout
    assert done.stderr == ""
    assert os.listdir(tmp_path) == ["tiny.gin"]


def test_strategy_help_lists_what_is_installed(tmp_path):
    done = trainer(tmp_path, "--strategy=help")
    assert done.returncode == 0, done.stderr
    assert all(
        name in done.stdout for name in ("default", "mirrored", "one_device")
    )


@pytest.mark.usefixtures("plain_starts")
@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"KERAS_BACKEND": "jax"}, "KERAS_BACKEND=jax"),
        ({}, "keras-trainer-plugins[cpu]"),
    ],
)
def test_an_environment_that_cannot_work(tmp_path, environment, part):
    # Hides TensorFlow the way an environment without it does.
    hide = (
        "import sys, importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda n, *a: None if n == 'tensorflow' "
        "else find(n, *a); "
        "from trainer.cli.main import main; "
        "sys.exit(main(['--gin_file=tiny.gin']))"
    )
    (tmp_path / "tiny.gin").write_text(TINY)
    done = subprocess.run(
        [sys.executable, "-c", hide],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
