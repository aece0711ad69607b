"""absl flags that the user's modules define."""

import pytest

from tests.sets import long, one_in
from tests.trainer.cli.tiny import TINY, run_trainer
from trainer.cli import flags
from trainer.errors import UserError

CODE = """
import gin
import keras
from absl import flags

UNITS = flags.DEFINE_integer("own_units", 1, "Units.", lower_bound=1)
flags.DEFINE_boolean("own_switch", False, "A switch.")
flags.DEFINE_string("data_dir", None, "Also a flag of trainer.")
flags.DEFINE_string("own_path", None, "Where.")


@gin.configurable
def own_model():
    values = flags.FLAGS
    print("own", values.own_units, values.own_switch, values.data_dir)
    print("path", values.own_path)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
"""
TEXT = f"import own_flags\n{TINY}Trainer.model = @own_model\n"


def run(tmp_path, *arguments, code=CODE, text=TEXT):
    (tmp_path / "own_flags.py").write_text(code)
    return run_trainer(tmp_path, "--mode=check", *arguments, text=text)


def assert_refused(done, *parts):
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        long([], "own 1 False None"),
        (["--own_units=3", "--own_switch"], "own 3 True None"),
        long(["--own_units", "3", "--batch_size=8"], "own 3 False None"),
        long(["--noown_switch", "--data_dir=here"], "own 1 False here"),
        long(["--flagfile=flags.txt"], "own 5 True None"),
    ],
)
def test_they_have_their_values(tmp_path, arguments, expected):
    (tmp_path / "flags.txt").write_text(
        "# Some flags.\n--own_units=5\n\n--own_switch\n--gin.SGD.momentum=0.5\n"
    )
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    one_in(
        2,
        [
            (["--own_unit=3"], ["--own_unit.", "'--own_units'"]),
            (["--trainsteps=3"], ["--trainsteps", "'--train_steps'"]),
            (["--own_units=x"], ["--own_units=x"]),
            (["--own_units=0"], ["--own_units=0", "positive"]),
            (["--own_units"], ["--own_units"]),
            (["--own_switch", "extra"], ["'extra'"]),
            # Those of libraries are not for this command line.
            (["--logtostderr"], ["--logtostderr"]),
            (["--flagfile=none.txt"], ["none.txt", "No such file"]),
        ],
    ),
)
def test_mistakes_are_one_sentence(tmp_path, arguments, parts):
    assert_refused(run(tmp_path, *arguments), *parts)


@pytest.mark.long
def test_one_that_is_required(tmp_path):
    code = f"{CODE}\nflags.mark_flag_as_required('own_path')\n"
    assert_refused(run(tmp_path, code=code), "--own_path")
    done = run(tmp_path, "--own_path=x", code=code)
    assert done.returncode == 0, done.stderr
    assert "path x" in done.stdout.splitlines()


def test_one_that_is_read_too_early_is_not_given_its_default(tmp_path):
    done = run(tmp_path, code=f"{CODE}\nprint(flags.FLAGS.own_units)\n")
    assert done.returncode == 1
    assert "module own_flags.py" in done.stderr.splitlines()[0]
    assert "before flags were parsed" in done.stderr


def test_helpfull_lists_them(tmp_path):
    done = run(tmp_path, "--helpfull")
    assert done.returncode == 0, done.stderr
    assert "--train_steps" in done.stdout
    assert "own_flags:" in done.stdout
    assert "--own_units" in done.stdout
    assert "--logtostderr" not in done.stdout


def test_a_flagfile_may_hold_every_kind_of_flag(tmp_path):
    inner = tmp_path / "inner"
    inner.write_text("--seed=3\n// A comment.\n")
    file = tmp_path / "flags"
    file.write_text(
        f"--gin_file=a b.gin\n--gin.Adam.beta_1=0.8\n--flagfile={inner}\n"
    )
    request = flags.parse([f"--flagfile={file}", "--batch_size=8"])
    assert request.gin_file == ["a b.gin"]
    assert [b.source for b in request.bindings] == [
        "--gin.Adam.beta_1=0.8",
        "--batch_size=8",
        "--seed=3",
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_flagfile_that_is_none(tmp_path, content):
    path = tmp_path / "flags"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="flagfile"):
        flags.parse([f"--flagfile={path}"])


def test_unknown_flags_wait_only_for_gin_files():
    left_over = ["--own=1", "2"]
    request = flags.parse(["--gin_file=a.gin", *left_over])
    assert request.left_over == tuple(left_over)
    with pytest.raises(UserError, match="'--gin_file'"):
        flags.parse(["--ginfile=a.gin"])
    with pytest.raises(UserError, match="'b'"):
        flags.parse(["--gin_file=a.gin", "b", "--own=1"])
