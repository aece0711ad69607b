"""gin files and bindings: what they mean, and what is said of mistakes."""

import gin
import keras
import numpy as np
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer import UserError
from trainer.cli.config.checks import user_error_in
from trainer.cli.config.unused import check_all_used
from trainer.strategy.registry import find_strategy

ADAM = ("", "keras.optimizers.Adam")


def said(configure, *given):
    with pytest.raises(UserError) as error:
        configure(*given)
    return str(error.value)


def test_later_sources_win_and_are_the_origin(configure):
    origins = configure(
        IMPORT + "Adam.beta_1 = 0.1\nAdam.beta_2 = 0.1\nAdam.epsilon = 0.1\n"
        "Trainer.seed = 1\n",
        "--gin.Adam.beta_2=0.3",
        "--gin_param=Adam.beta_2 = 0.2",
        "--gin_param=Adam.epsilon = 0.2",
        "--seed=4",
        "--gin.Trainer.seed=3",
    )
    names = ("Adam.beta_1", "Adam.beta_2", "Adam.epsilon", "Trainer.seed")
    assert list(map(gin.query_parameter, names)) == [0.1, 0.3, 0.2, 4]
    assert origins[*ADAM, "beta_1"].endswith("given.gin, line 2")
    assert origins[*ADAM, "beta_2"] == "--gin.Adam.beta_2=0.3"
    assert origins["", "trainer.Trainer", "seed"] == "--seed=4"
    assert gin.config_is_locked()


def test_a_flag_wins_over_a_subclass_binding(configure):
    configure(
        IMPORT + "a/ScaledTrainer.batch_size = 3\nScaledTrainer.scale = 2.0\n",
        "--batch_size=7",
    )
    assert gin.query_parameter("a/ScaledTrainer.batch_size") == 7
    assert gin.query_parameter("ScaledTrainer.scale") == 2.0


def test_config_str_is_read_back_alike(configure):
    configure(
        IMPORT + "rate = 0.25\nScaledTrainer.scale = %rate\n"
        "run.callbacks = [@EarlyStopping(), @keras.callbacks.LambdaCallback()]"
        "\nEarlyStopping.patience = 4\ntower.width = @Small\n"
        "Small.units = 2\nx/Small.units = 5\n",
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


def test_include_beside_the_file_then_from_here(
    configure, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "both.gin").write_text("Adam.beta_1 = 0.1\n")
    (here / "both.gin").write_text("Adam.beta_1 = 0.2\n")
    (here / "only_here.gin").write_text("Adam.beta_2 = 0.3\n")
    origins = configure("include 'both.gin'\ninclude 'only_here.gin'\n")
    assert gin.query_parameter("Adam.beta_1") == 0.1
    assert gin.query_parameter("Adam.beta_2") == 0.3
    assert origins[*ADAM, "beta_1"] == f"{tmp_path}/both.gin, line 1"


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
    ("name", "expected"),
    [
        ("Adam", keras.optimizers.Adam),
        ("losses.MeanSquaredError", keras.losses.MeanSquaredError),
        ("metrics.MeanSquaredError", keras.metrics.MeanSquaredError),
        ("keras.layers.Dense", keras.layers.Dense),
        ("keras.regularizers.L2", keras.regularizers.L2),
        ("GlorotUniform", keras.initializers.GlorotUniform),
    ],
)
def test_keras_classes_are_known_and_keep_their_type(configure, name, expected):
    arguments = f"keras.layers.Dense.units = 3\ntower.width = @{name}()\n"
    configure(IMPORT + arguments)
    made = gin.get_bindings("tower")["width"]
    assert type(made) is expected
    assert type(expected.from_config(made.get_config())) is expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Adam.beta_1 = ", ["line 1"]),
        ("\nAdam.beta_1 = 1 2", ["line 2", "Expected newline"]),
        ("Adam.beta_1 = fast", ["line 1", "'fast'", "quotes"]),
        ("Adam.beta_1 = [1,\n", ["bracket"]),
        ("Adm.beta_1 = 1", ["line 1", "'Adm'", "'Adam'"]),
        ("Adam.beta1 = 1", ["line 1", "'beta1'", "'beta_1'", "epsilon"]),
        ("Adam.learning_rat = 1", ["'learning_rat'", "'learning_rate'"]),
        ("Adam.lr = 0.1", ["Did you mean 'learning_rate'"]),
        ("SGD.decay = 0.1", ["no parameter 'decay'"]),
        ("run.train_step = 1", ["'train_step'", "'train_steps'"]),
        ("x = @Adm()", ["line 1", "'Adm'", "'Adam'"]),
        ("x = [\n @losses.MeanSquared()]", ["line 2", "MeanSquaredError"]),
        ("x = @MeanSquaredError", ["losses.Mean", "metrics.Mean"]),
        ("Trainer.seed = %sed", ["line 1", "%sed"]),
        ("seed = 1\nTrainer.seed = %sed", ["line 2", "'%seed'"]),
        ("Trainer.seed = %gin.REQUIRED", ["Trainer.seed", "REQUIRED"]),
        ("a = %a", ["given.gin, line 1: ", "refers to itself: %a -> %a"]),
        ("Trainer.seed = %a\na = [1, {2: %b}]\nb = %a", ["line ", "%b -> %a"]),
        (
            IMPORT + "linear.units = @s/linear()\ns/linear.units = @linear()",
            ["line 3", "@s/linear() -> @s/linear()"],
        ),
        (
            "Trainer.guard = @Guard()\nGuard.max_loss = %x\nx = @Guard()",
            ["refers to itself", "%x"],
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
    message = said(configure, text)
    assert all(part in message for part in parts), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        ("--gin.Adam.beta1=1", ["--gin.Adam.beta1=1:", "'beta_1'"]),
        ("--gin.run.strategy=tpu", ["--gin.run.strategy=tpu:", "quotes"]),
        ("--gin_param=Adm.beta_1=1", ["--gin_param='Adm.beta_1=1':", "Adam"]),
        ("--gin.Trainer.seed=%none", ["--gin.Trainer.seed=%none:", "%none"]),
        ("--gin.Trainer.seed=-1", ["seed = -1 (--gin.Trainer.seed=-1)"]),
    ],
)
def test_mistakes_in_flags_name_the_flag(configure, flag, parts):
    message = said(configure, "", flag)
    assert all(part in message for part in parts), message
    assert ", line " not in message


def test_a_missing_dependency_of_an_imported_module(
    configure, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_by_test_needs.py").write_text("import not_here\n")
    message = said(configure, "import made_by_test_needs\n")
    assert "needs the package 'not_here'" in message
    (tmp_path / "made_by_test_bug.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        configure("import made_by_test_bug\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Trainer.seed = -1",
            "Trainer.seed = -1 .*line 1.* a whole number >= 0",
        ),
        ("Trainer.optimizer = {}", "must be a Keras optimizer, a function"),
        ("run.callbacks = 5", "must be a list of callbacks"),
        ("run.train_steps = 1.5", "a number of steps >= 1, or epochs"),
        # Neither is used, nor could it be here.
        ("ParameterServer.start_seconds = 'x'", "a number > 0"),
        ("s/Guard.action = 'halt'", "s/Guard.action = 'halt' .*'stop' or"),
        ("n = -3\nTrainer.batch_size = %n", "batch_size = -3 .*line 2"),
        ("Trainer.model = @Guard", "model = Guard .*a keras.Model, or a func"),
        # Keras has no annotations.
        ("Adam.learning_rate = 'x'", "Adam.learning_rate = 'x' .* a number"),
        ("Adam.learning_rate = -1.0", "must be a number >= 0"),
        ("Adam.beta_1 = 2", "Adam.beta_1 = 2 .* a number >= 0 and < 1"),
        ("Adam.amsgrad = 'yes'", "True or False"),
        ("Adam.clipnorm = 0", "a number > 0"),
        ("BatchNormalization.momentum = 5", "a number >= 0 and <= 1"),
        ("ReduceLROnPlateau.patience = 'x'", "patience = 'x' .* a number"),
        ("CosineDecay.alpha = 1e999", "alpha = inf .* a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(configure, text, words):
    with pytest.raises(UserError, match=words) as error:
        configure(text)
    assert "given.gin, line" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_flag_that_overrides_a_wrong_value_counts(configure):
    configure("Trainer.seed = -1", "--seed=5")


@pytest.mark.parametrize(
    "text",
    [
        "Adam.weight_decay = None",
        "Adam.clipnorm = 1.0",
        "Adam.learning_rate = @CosineDecay()",
        "rate = 0.1\nAdam.learning_rate = %rate",
        "keras.layers.Conv2D.strides = (2, 2)",
        "ModelCheckpoint.save_freq = 100",
        "Dropout.rate = 0.5",
        "BatchNormalization.axis = [1, 2]",
    ],
)
def test_what_keras_takes(configure, text):
    configure(text)


def check(origins, strategy="one_device", **options):
    return check_all_used(origins, selected=find_strategy(strategy), **options)


def unused(origins):
    return [one.split(" ")[0] for one in check(origins, only_warn=True)]


def test_an_unused_binding_is_named_with_place_and_nearest(configure, caplog):
    origins = configure(IMPORT + "linear.units = 2\nbroken_model.units = 2\n")
    gin.get_configurable("linear")()
    with pytest.raises(UserError) as error:
        check(origins)
    message = str(error.value)
    assert "broken_model.units" in message
    assert "given.gin, line 3" in message
    assert "linear.units (" not in message
    assert len(message.splitlines()) <= 3
    assert unused(origins) == ["broken_model.units"]
    assert "broken_model.units" in caplog.text


def test_what_is_used(configure):
    origins = configure(
        IMPORT + "width = 3\nlinear.units = %width\nwidht = 4\n"
        "a/linear.units = 3\nb/linear.units = 4\n"
    )
    gin.get_configurable("a/linear")()
    # Of a macro, the binding that refers to it is named.
    assert unused(origins) == ["linear.units", "widht", "b/linear.units"]
    gin.get_configurable("linear")(units=4)
    assert "linear.units" in unused(origins)
    gin.get_configurable("linear")()
    assert unused(origins) == ["widht", "b/linear.units"]


def test_other_strategies_are_exempt_with_what_they_refer_to(configure):
    origins = configure(
        IMPORT + "named = 'cpu:0'\nMirrored.devices = %named\n"
        "Mirrored.all_reduce = @a/reduction()\na/reduction.kind = 'nccl'\n"
    )
    assert check(origins) == []


def test_what_a_named_flag_replaces_is_exempt(configure):
    origins = configure("Adam.learning_rate = 0.1\n", "--learning_rate=0.5")
    gin.get_configurable("Adam")(learning_rate=0.5)
    flags = {"learning_rate": "--learning_rate=0.5"}
    with pytest.raises(UserError) as error:
        check(origins, flags=flags)
    # Only the flag itself is left, since no Trainer was made.
    assert "(--learning_rate=0.5)" in str(error.value)
    assert "given.gin" not in str(error.value)


def translated(origins, name, *arguments, **options):
    with pytest.raises(Exception) as error:  # noqa: PT011 - any may come
        gin.get_configurable(name)(*arguments, **options)
    found = user_error_in(error.value, origins)
    return None if found is None else str(found)


def test_what_keras_refuses(configure):
    origins = configure(
        "Adam.learning_rate = 1\nDense.units = 1\nDense.colour = 'red'\n"
    )
    message = translated(origins, "Adam")
    assert "Adam.learning_rate = 1 " in message
    assert "given.gin, line 1" in message
    assert "\n" not in message
    found = translated(origins, "Dense")
    assert "Dense.colour = 'red' " in found
    assert "given.gin, line 3" in found


def test_calls_that_do_not_fit(configure):
    origins = configure(IMPORT)
    assert "units" in translated(origins, "Dense")
    assert "colour" in translated(
        origins, "ScaledTrainer", model=None, colour="red"
    )
    assert "units" in translated(origins, "linear", gin.REQUIRED)


def test_a_bug_in_user_code_is_not_translated(configure):
    origins = configure(IMPORT + "broken_model.units = -3\n")
    assert translated(origins, "broken_model") is None
    assert user_error_in(ValueError("x"), origins) is None


@pytest.mark.parametrize("owner", ["Trainer", "ScaledTrainer"])
def test_a_value_that_only_a_call_gives(configure, owner):
    text = f"{owner}.batch_size = @tower()\ntower.width = 0\n"
    found = translated(configure(IMPORT + text), owner, model=lambda: None)
    # Under the name by which it was bound, not that of the base class.
    assert found.startswith(f"{owner}.batch_size = 0 (")
    assert found.endswith("line 2) must be a whole number >= 1 or None.")


def test_a_layer_made_by_gin_trains_and_is_serialized(configure):
    configure(f"{IMPORT}tower.width = @Dense()\nDense.units = 2\n")
    layer = gin.get_bindings("tower")["width"]
    model = keras.Sequential([keras.Input((3,)), layer])
    copy = keras.Sequential.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    x = np.ones((5, 3), "float32")
    np.testing.assert_allclose(copy(x), model(x), rtol=1e-6)
