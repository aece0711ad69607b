"""The command line, and what is made from the list of options."""

import inspect
import subprocess
import sys

import pytest

from trainer import Trainer, UserError
from trainer.cli import flags
from trainer.cli.help import help_text
from trainer.experiment import build
from trainer.run_options import RunOptions, declared_in
from trainer.values.configurable import types_of

FILE = "--gin_file=a.gin"


def texts(*arguments):
    return [b.text for b in flags.parse([FILE, *arguments]).bindings]


def test_gin_flags_become_bindings():
    assert texts("--gin.Adam.beta_1=0.8", "-gin.scope/A.b='x=y'") == [
        "Adam.beta_1 = 0.8",
        "scope/A.b = 'x=y'",
    ]


def test_precedence_is_params_then_gin_flags_then_named_flags():
    assert texts(
        "--batch_size=8", "--gin.A.b=2", "--gin_param=A.b=1", "--seed=3"
    ) == [
        "A.b=1",
        "A.b = 2",
        "trainer.Trainer.batch_size = 8",
        "trainer.Trainer.seed = 3",
    ]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--train_steps=7", "trainer.run.train_steps = 7"),
        ("--learning_rate=1", "trainer.Trainer.learning_rate = 1.0"),
        ("--learning_rate=1e-4", "trainer.Trainer.learning_rate = 0.0001"),
        ("--strategy=mirrored", "trainer.run.strategy = 'mirrored'"),
        ("--devices=cpu:0,cpu:1", "trainer.run.devices = 'cpu:0,cpu:1'"),
        ("--jit_compile", "trainer.Trainer.jit_compile = True"),
        ("--jit_compile=auto", "trainer.Trainer.jit_compile = 'auto'"),
        ("--jit_compile=graph", "trainer.Trainer.jit_compile = 'graph'"),
        ("--nojit_compile", "trainer.Trainer.jit_compile = False"),
        ("--deterministic=false", "trainer.run.deterministic = False"),
        ("--mixed_precision=float32", "trainer.Trainer.precision = 'float32'"),
        ("--data_dir=it's", 'trainer.Trainer.data_dir = "it\'s"'),
        ("--tpu=local", "trainer.run.tpu = 'local'"),
        ("--virtual_devices=2", "trainer.run.virtual_devices = 2"),
        ("--init_from=d", "trainer.run.init_from = 'd'"),
        ("--steps_per_loop=4", "trainer.run.steps_per_loop = 4"),
    ],
)
def test_named_flags_bind(argument, text):
    assert texts(argument) == [text]


def test_what_binds_nothing():
    request = flags.parse(
        [FILE, "--gin_file=b.gin", "--model_dir=d", "--mode=eval"]
    )
    assert request.gin_file == ["a.gin", "b.gin"]
    assert (request.model_dir, request.mode) == ("d", "eval")
    assert request.bindings == ()
    assert flags.parse([FILE]).mode == "train_and_eval"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--mode=trian"], ["--mode=trian", "'train'", "print_config"]),
        (["--batch_size=0"], ["--batch_size=0", "a whole number >= 1"]),
        (["--batch_size=x"], ["--batch_size=x", "a whole number"]),
        (["--learning_rate=nan"], ["--learning_rate=nan"]),
        (["--learning_rate=-1"], ["--learning_rate=-1"]),
        (["--jit_compile=7"], ["--jit_compile=7", "True or False", "'xla'"]),
        (
            ["--steps_per_loop=0"],
            ["--steps_per_loop=0: must be a whole number >= 1"],
        ),
        (
            ["--steps_per_loop=fast"],
            ["--steps_per_loop=fast", "a whole number"],
        ),
        (["--mixed_precision=bf16"], ["bf16", "mixed_bfloat16"]),
        (["--train_steps"], ["--train_steps"]),
        (["--strategy="], ["--strategy=", "non-empty"]),
        (["--gin.Adam"], ["--gin.Adam", "--gin.A.b=1"]),
        (["--gin.=3"], ["--gin.=3"]),
        (["b.gin"], ["'b.gin'", "--gin_file=b.gin"]),
        (["b"], ["'b'", "--flag=value"]),
        (["--trainsteps=3"], ["--trainsteps.", "'--train_steps'"]),
        (["--ginfile=b.gin"], ["'--gin_file'"]),
        (["--own=1", "b"], ["Unknown flag --own."]),
        (["--flagfile=none.txt"], ["none.txt", "No such file"]),
        (["--mode=export"], ["--model_dir"]),
    ],
)
def test_mistakes_are_one_sentence(arguments, parts):
    with pytest.raises(UserError) as error:
        flags.parse([FILE, *arguments])
    message = str(error.value)
    assert all(part in message for part in parts), message
    assert message.count("\n") < 3


def test_a_configuration_is_needed_except_for_the_strategies():
    with pytest.raises(UserError, match="--gin_file"):
        flags.parse(["--mode=train"])
    assert flags.parse(["--strategy=help"]).list_strategies


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


@pytest.mark.parametrize("name", declared_in(RunOptions))
def test_an_option_is_declared_once(name):
    """Flag, help, gin and Python have it from `RunOptions`."""
    kind, facts = declared_in(RunOptions)[name]
    takers = {
        build: facts.in_gin,
        Trainer.train: facts.in_python == "train",
        Trainer.train_and_evaluate: bool(facts.in_python),
    }
    if name == "callbacks":  # In Python it may also be a single one.
        takers = {build: True}
    for taker, takes in takers.items():
        parameter = inspect.signature(taker).parameters.get(name)
        assert (parameter is not None) == takes
        if takes:
            assert parameter.default == getattr(RunOptions, name)
            assert types_of(taker)[name] == kind
            assert facts.about in taker.__doc__
    assert (name in flags.FLAGS) == bool(facts.group)
    if facts.group:
        assert flags.FLAGS[name].kind == kind
        assert facts.about[:25] in help_text()


def test_help_names_every_flag_in_80_columns():
    text = help_text().replace("--[no]", "--")
    assert all(f"--{name}:" in text for name in flags.FLAGS)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.usefixtures("plain_starts")
@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("--help", 0),
        ("--unknown", 2),
        ("--gin_file=none.gin", 2),
        ("--gin_file=experiments/digits.gin --model_dir=README.md", 2),
        ("--gin_file=experiments/digits.gin --model_dir=README.md/run", 2),
    ],
)
def test_answers_without_tensorflow(argument, code, root):
    program = (
        "import sys; from trainer.cli.main import main; "
        f"code = main({argument.split()!r}); "
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules); "
        "print(sorted(heavy)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Traceback" not in done.stderr
