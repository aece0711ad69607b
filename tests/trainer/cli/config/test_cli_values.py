import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.errors import UserError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Trainer.seed = -1",
            "Trainer.seed = -1 .*line 1.* a whole number >= 0",
        ),
        ("Trainer.learning_rate = 'x'", "a number >= 0"),
        ("Trainer.optimizer = {}", "must be a Keras optimizer, a function"),
        ("run.callbacks = 5", "must be a list of callbacks"),
        ("run.train_steps = 1.5", "a number of steps >= 1, or epochs"),
        ("Checkpoint.asynchronous = 'no'", "True or False"),
        # Neither is used, nor could it be here.
        ("ParameterServer.start_seconds = 'x'", "a number > 0"),
        ("TPU.tpu = 5", "a non-empty string or None"),
        ("s/Guard.action = 'halt'", "s/Guard.action = 'halt' .*'stop' or"),
        ("n = -3\nTrainer.batch_size = %n", "batch_size = -3 .*line 2"),
        ("n = %m\nm = 0\nrun.log_every = %n", "log_every = 0 .*a period"),
        # Keras has no annotations.
        ("Adam.learning_rate = 'x'", "Adam.learning_rate = 'x' .* a number"),
        ("Adam.learning_rate = -1.0", "must be a number >= 0"),
        ("Adam.beta_1 = 2", "Adam.beta_1 = 2 .* a number >= 0 and < 1"),
        ("Adam.amsgrad = 'yes'", "True or False"),
        ("Adam.clipnorm = 0", "a number > 0"),
        ("BatchNormalization.momentum = 5", "a number >= 0 and <= 1"),
        ("ReduceLROnPlateau.patience = 'x'", "patience = 'x' .* a number"),
        ("CosineDecay.alpha = 1e999", "alpha = inf .* a number"),
        (
            "losses.CategoricalCrossentropy.label_smoothing = -1",
            "a number >= 0",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_line(configure, text, words):
    with pytest.raises(UserError, match=words) as error:
        configure(text)
    assert "given.gin, line" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_flag_that_overrides_a_wrong_value_counts(configure):
    configure("Trainer.seed = -1", "--seed=5")


def test_a_wrong_flag(configure):
    with pytest.raises(UserError, match=r"seed = -1 \(--gin.Trainer.seed=-1\)"):
        configure("", "--gin.Trainer.seed=-1")


@pytest.mark.parametrize(
    "text",
    [
        "Adam.weight_decay = None",
        "Adam.clipnorm = 1.0",
        "Adam.learning_rate = @CosineDecay()",
        "rate = 0.1\nAdam.learning_rate = %rate",
        "keras.layers.Conv2D.strides = (2, 2)",
        "keras.callbacks.EarlyStopping.min_delta = 0.5",
        "ModelCheckpoint.save_freq = 100",
        "Dropout.rate = 0.5",
        "BatchNormalization.axis = [1, 2]",
    ],
)
def test_what_keras_takes(configure, text):
    configure(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = %a",
        "a = %b\nb = [%a]",
        "Trainer.guard = @Guard()\nGuard.max_loss = %x\nx = @Guard()",
        "tower.width = @tower()",
    ],
)
def test_values_that_need_themselves(configure, text):
    with pytest.raises(UserError, match="needs itself.* -> "):
        configure(IMPORT + text)


def test_old_names_of_keras(configure):
    with pytest.raises(UserError, match="Did you mean 'learning_rate'"):
        configure("Adam.lr = 0.1")
    with pytest.raises(UserError, match="no parameter 'decay'"):
        configure("SGD.decay = 0.1")
