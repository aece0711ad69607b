import gin
import keras
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.errors import UserError


def test_later_sources_win(configure):
    origins = configure(
        IMPORT + "Adam.beta_1 = 0.1\nAdam.beta_2 = 0.1\nAdam.epsilon = 0.1\n"
        "Trainer.seed = 1\n",
        "--gin.Adam.beta_2=0.3",
        "--gin_param=Adam.beta_2 = 0.2",
        "--gin_param=Adam.epsilon = 0.2",
        "--seed=4",
        "--gin.Trainer.seed=3",
    )
    values = {
        name: gin.query_parameter(name)
        for name in ("Adam.beta_1", "Adam.beta_2", "Adam.epsilon")
    }
    assert values == {
        "Adam.beta_1": 0.1,
        "Adam.beta_2": 0.3,
        "Adam.epsilon": 0.2,
    }
    assert gin.query_parameter("Trainer.seed") == 4
    adam = ("", "keras.optimizers.Adam")
    assert origins[*adam, "beta_1"].endswith("given.gin, line 2")
    assert origins[*adam, "beta_2"] == "--gin.Adam.beta_2=0.3"
    assert origins["", "trainer.Trainer", "seed"] == "--seed=4"
    assert gin.config_is_locked()


def test_a_flag_wins_over_a_subclass_binding(configure):
    configure(
        IMPORT + "a/ScaledTrainer.batch_size = 3\nScaledTrainer.scale = 2.0\n",
        "--batch_size=7",
    )
    assert gin.query_parameter("a/ScaledTrainer.batch_size") == 7
    assert gin.query_parameter("ScaledTrainer.scale") == 2.0
    with pytest.raises(ValueError, match="no bound"):
        gin.query_parameter("Mirrored.devices")


def test_config_str_is_read_back_alike(configure):
    configure(
        IMPORT + "rate = 0.25\nScaledTrainer.scale = %rate\n"
        "run.callbacks = [@EarlyStopping(), @keras.callbacks.EarlyStopping()]\n"
        "keras.callbacks.EarlyStopping.patience = 3\n"
        "EarlyStopping.patience = 4\n"
        "tower.width = @Dense\nDense.units = 2\n"
        "x/Dense.units = 5\n",
        "--devices=a,b",
        "--train_steps=9",
    )
    first = gin.config_str()
    assert "run.train_steps = 9" in first
    gin.clear_config()
    configure(first)
    assert gin.config_str() == first
    gin.clear_config()
    gin.parse_config(first)  # Without this package's own reader.
    assert gin.config_str() == first


def test_own_names_win_over_keras(configure):
    from cli_tiny_experiment import Dense, tower

    from trainer_plugins.callbacks.early_stopping import EarlyStopping

    configure(
        IMPORT + "tower.width = @Dense()\nDense.units = 3\n"
        "run.callbacks = [@EarlyStopping(), @keras.callbacks.EarlyStopping()]\n"
    )
    width = gin.get_bindings(tower)["width"]
    assert type(width) is Dense
    assert width.units == 3
    ours, theirs = gin.get_bindings("run")["callbacks"]
    assert type(ours) is EarlyStopping
    assert type(theirs) is keras.callbacks.EarlyStopping


def test_include_beside_the_file_then_from_here(
    configure, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "both.gin").write_text("Adam.beta_1 = 0.1\n")
    (here / "both.gin").write_text("Adam.beta_1 = 0.2\n")
    (here / "only_here.gin").write_text("Adam.beta_2 = 0.3\n")
    origins = configure(
        "include 'both.gin'\ninclude 'only_here.gin'\nAdam.epsilon = 0.4\n"
    )
    assert gin.query_parameter("Adam.beta_1") == 0.1
    assert gin.query_parameter("Adam.beta_2") == 0.3
    origin = origins["", "keras.optimizers.Adam", "beta_1"]
    assert origin == f"{tmp_path}/both.gin, line 1"


def test_a_value_may_need_the_same_in_another_scope(configure):
    configure(
        IMPORT + "linear.units = @s/tower()\ntower.width = @t/tower()\n"
        "s/tower.width = @t/tower()\nt/tower.width = 3\n"
    )
    assert gin.get_bindings("linear")["units"] == 3


def test_dynamic_registration(configure):
    configure(
        "from __gin__ import dynamic_registration\nimport keras\n"
        "keras.optimizers.Adam.beta_1 = 0.5\n"
    )
    assert gin.query_parameter("keras.optimizers.Adam.beta_1") == 0.5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Adam.beta_1 = ", ["line 1"]),
        ("\nAdam.beta_1 = 1 2", ["line 2", "Expected newline"]),
        ("Adam.beta_1 = fast", ["line 1", "'fast'", "quotes"]),
        ("Adam.beta_1 = [1,\n", ["bracket"]),
        ("Adm.beta_1 = 1", ["line 1", "'Adm'", "'Adam'"]),
        ("Adam.beta1 = 1", ["line 1", "'beta1'", "'beta_1'", "epsilon"]),
        ("run.train_step = 1", ["'train_step'", "'train_steps'"]),
        ("x = @Adm()", ["line 1", "'Adm'", "'Adam'"]),
        ("x = [\n @losses.MeanSquared()]", ["line 2", "MeanSquaredError"]),
        ("x = @MeanSquaredError", ["losses.Mean", "metrics.Mean"]),
        ("Trainer.seed = %sed", ["line 1", "%sed"]),
        ("seed = 1\nTrainer.seed = %sed", ["line 2", "'%seed'"]),
        ("Trainer.seed = %gin.REQUIRED", ["Trainer.seed", "REQUIRED"]),
        ("a = %a", ["given.gin, line 1: ", "%a -> %a"]),
        ("Trainer.seed = %a\na = [1, {2: %b}]\nb = %a", ["line 2", "%b -> %a"]),
        (
            IMPORT + "linear.units = @s/linear()\ns/linear.units = @linear()",
            ["line 3", "@linear() -> @linear()"],
        ),
        ("Trainer.seed = " + "[" * 90, ["bracket"]),
        ("Trainer.seed = " + "[" * 100_000, ["bracket"]),
        ("Trainer.seed = " + "[" * 500 + "]" * 500, ["bracket"]),
        ("import cli_tiny_exp", ["line 1", "'cli_tiny_experiment'"]),
        ("import trainer.datas", ["'trainer.datas'", "'trainer.data'"]),
        ("import no.such", ["'no'"]),
        ("include 'givn.gin'", ["line 1", "givn.gin", "given.gin'"]),
        ("include 'given.gin'", ["include each other"]),
        ("include '.'", ["directory"]),
        ("run.mode = 'train'", ["run.mode", "--mode"]),
        (IMPORT + "ScaledTrainer.scal = 1", ["'scal'", "'scale'"]),
        (IMPORT + "ScaledTrainer.batch = 1", ["'batch'", "'batch_size'"]),
        (IMPORT + "linear.unit = 1", ["line 2", "'unit'", "'units'"]),
        ("a.b.c", ["line 1"]),
        ("$", ["line 1"]),
    ],
)
def test_mistakes_name_the_place_and_the_nearest(configure, text, parts):
    with pytest.raises(UserError) as error:
        configure(text)
    message = str(error.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        ("--gin.Adam.beta1=1", ["--gin.Adam.beta1=1:", "'beta_1'"]),
        ("--gin.run.strategy=tpu", ["--gin.run.strategy=tpu:", "quotes"]),
        ("--gin_param=Adm.beta_1=1", ["--gin_param='Adm.beta_1=1':", "Adam"]),
        ("--gin.Trainer.seed=%none", ["--gin.Trainer.seed=%none:", "%none"]),
    ],
)
def test_mistakes_in_flags_name_the_flag(configure, flag, parts):
    with pytest.raises(UserError) as error:
        configure("", flag)
    message = str(error.value)
    assert all(part in message for part in parts), message
    assert ", line " not in message


def test_a_missing_dependency_of_an_imported_module(configure, tmp_path):
    (tmp_path / "made_by_test_needs.py").write_text("import not_here\n")
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(UserError, match="needs the package 'not_here'"):
            configure("import made_by_test_needs\n")
        (tmp_path / "made_by_test_bug.py").write_text("1 / 0\n")
        with pytest.raises(ZeroDivisionError):
            configure("import made_by_test_bug\n")
    finally:
        sys.path.remove(str(tmp_path))


def test_no_such_file_and_no_text(configure, tmp_path):
    from trainer.cli.config.reader import load

    configure("")
    gin.clear_config()
    with pytest.raises(UserError, match="Did you mean '.*given.gin'"):
        load([str(tmp_path / "givn.gin")])
    (tmp_path / "binary.gin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not text"):
        load([str(tmp_path / "binary.gin")])
