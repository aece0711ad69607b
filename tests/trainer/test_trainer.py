"""The Trainer's own step against plain TensorFlow and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.ops import convert_to_numpy

from trainer import Trainer, UserError
from trainer_plugins import Mirrored

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype("float32")
Y = RNG.normal(size=(40, 2)).astype("float32")


def linear():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])


def make(cls=Trainer, **options):
    return cls(
        **{
            "model": linear,
            "loss": "mse",
            "optimizer": lambda: keras.optimizers.SGD(0.1),
            "data": lambda split: (X, Y),
            "batch_size": 40,
            "strategy": "default",
            **options,
        }
    )


def variables_of(trainer):
    return [convert_to_numpy(v) for v in trainer.model.variables]


def step_of(trainer):
    """The change of the kernel in one step of rate 0.1, as a gradient."""
    kernel = trainer.model.layers[0].kernel
    before = convert_to_numpy(kernel)
    logs = trainer.train(1, log_every=1)
    return (before - convert_to_numpy(kernel)) / 0.1, before, logs


def test_several_outputs_with_losses_of_their_own():
    def two_heads():
        inputs = keras.Input((5,))
        shared = keras.layers.Dense(2, use_bias=False, name="shared")(inputs)
        return keras.Model(inputs, {"a": shared, "b": 2.0 * shared})

    trainer = make(
        model=two_heads,
        loss={
            "a": keras.losses.MeanSquaredError(),
            "b": keras.losses.MeanAbsoluteError(reduction="sum"),
        },
        metrics={"a": [keras.metrics.MeanAbsoluteError]},
        data=lambda split: (X, {"a": Y, "b": Y}),
    )
    kernel = trainer.model.get_layer("shared").kernel
    before = convert_to_numpy(kernel).astype("float64")
    logs = trainer.train(1, log_every=1)
    out = X @ before
    loss = np.mean((out - Y) ** 2) + np.abs(2 * out - Y).mean(1).sum()
    slope = 2 * (out - Y) / Y.size + 2 * np.sign(2 * out - Y) / 2
    change = (before - convert_to_numpy(kernel)) / 0.1
    np.testing.assert_allclose(change, X.T @ slope, rtol=1e-4, atol=1e-4)
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    assert logs["a_mean_absolute_error"] == pytest.approx(
        np.abs(out - Y).mean(), rel=1e-5
    )


def test_activity_regularizer_and_add_loss_are_averages_over_the_batch():
    def model():
        return keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(2, activity_regularizer="l2"),
            ]
        )

    trainer = make(model=model, batch_size=16)
    kernel, bias = variables_of(trainer)
    logs = trainer.train(1, log_every=1)
    # The data is shuffled: find which examples came by the loss alone.
    out = X @ kernel + bias
    per_example = ((out - Y) ** 2).mean(1) + 0.01 * (out**2).sum(1)
    assert per_example.min() < logs["loss"] < per_example.max()
    whole = trainer.evaluate()["loss"]
    kernel, bias = variables_of(trainer)
    out = X @ kernel + bias
    per_example = ((out - Y) ** 2).mean(1) + 0.01 * (out**2).sum(1)
    assert whole == pytest.approx(per_example.mean(), rel=1e-5)


def test_xla_gives_the_same_step():
    plain, _, _ = step_of(make())
    compiled, _, _ = step_of(make(jit_compile=True))
    np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)


def test_own_loss_per_example_sees_inputs_and_is_divided_globally():
    class Weighted(Trainer):
        def per_example_loss(self, x, y, y_pred):
            return x[:, 0] ** 2 * tf.reduce_sum((y_pred - y) ** 2, 1)

    change, before, logs = step_of(make(Weighted, loss=None))
    scale = X[:, :1] ** 2
    error = X @ before - Y
    expected = X.T @ (2 * scale * error) / len(X)
    np.testing.assert_allclose(change, expected, rtol=1e-4, atol=1e-5)
    assert logs["loss"] == pytest.approx(
        (scale * error**2).sum() / len(X), rel=1e-5
    )


def test_bfloat16_computes_in_half_and_keeps_float32_weights():
    trainer = make(precision="mixed_bfloat16")
    trainer.train(3)
    layer = trainer.model.layers[0]
    assert layer.compute_dtype == "bfloat16"
    assert layer.kernel.dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"


def test_learning_rate_replaces_the_optimizers_own():
    trainer = make(learning_rate=0.25)
    assert trainer._built.learning_rates() == {"learning_rate": 0.25}
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    trainer = make(
        optimizer=lambda: keras.optimizers.SGD(schedule, momentum=0.5),
        learning_rate=0.25,
    )
    assert trainer._built.learning_rates() == {"learning_rate": 0.25}
    assert trainer.optimizer.momentum == 0.5


def test_seed_decides_the_first_weights():
    first = [variables_of(make(seed=s))[0] for s in (1, 1, 2)]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])


def test_a_model_without_shapes_is_built_from_the_data():
    trainer = make(model=lambda: keras.Sequential([keras.layers.Dense(2)]))
    trainer.train(2)
    assert trainer.model.layers[0].kernel.shape == (5, 2)


def test_strings_and_functions_name_losses():
    for loss in ("mse", "MeanSquaredError", keras.losses.mean_squared_error):
        assert make(loss=loss).evaluate()["loss"] == pytest.approx(
            make().evaluate()["loss"]
        )


def test_single_device_model_holds_the_averaged_weights():
    trainer = make(ema_momentum=0.5)
    trainer.train(5)
    copy = trainer._built.single_device_model()
    averages = [convert_to_numpy(v) for v in trainer._built.parts.ema.variables]
    for value, average in zip(copy.get_weights(), averages, strict=True):
        assert np.array_equal(value, average)
    assert not np.array_equal(averages[0], trainer.model.get_weights()[0])


class Scalar(Trainer):
    def per_example_loss(self, x, y, y_pred):
        return tf.reduce_mean((y_pred - y) ** 2)


class Own(Trainer):
    def train_step(self, batch):
        return {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cls": Scalar}, "one value for each example"),
        ({"loss": None}, "There is no loss"),
        ({"loss": "mze"}, "Trainer.loss = 'mze' must be a Keras loss"),
        ({"model": 3}, "must be a keras.Model, or a function that returns"),
        ({"model": lambda: 3}, "returned a int"),
        (
            {"optimizer": keras.losses.Huber()},
            "must be a Keras optimizer, a function that returns one",
        ),
        ({"optimizer": lambda: 3}, "returned 3, not a Keras optimizer"),
        (
            {"optimizer": lambda: keras.optimizers.SGD(lambda: "fast")},
            "SGD.learning_rate = 'fast' must be a number",
        ),
        (
            {"strategy": Mirrored(devices="cpu:0,/cpu:0")},
            "named twice: cpu:0, cpu:0",
        ),
        ({"optimizer": "adm"}, "Trainer.optimizer = 'adm' must be"),
        ({"metrics": ["accurracy"]}, "not a keras.Metric"),
        ({"batch_size": 0}, "a whole number >= 1"),
        ({"batch_size": 2.5}, "whole number"),
        ({"accumulation_steps": 0}, "a whole number >= 1"),
        ({"precision": "float8"}, "must be 'float32', "),
        ({"ema_momentum": 1.5}, "must be a number > 0 and < 1"),
        ({"strategy": "miror"}, "Did you mean 'mirrored'"),
        ({"data": None}, "There is no train data"),
        ({"data": lambda split: 3}, "is a int"),
        ({"cls": Own, "accumulation_steps": 2}, "train_step of its own"),
        ({"cls": Own, "precision": "mixed_float16"}, "Use mixed_bfloat16"),
        (
            {
                "optimizer": lambda: keras.optimizers.SGD(
                    gradient_accumulation_steps=2
                ),
                "strategy": Mirrored(devices="cpu:0"),
            },
            "Use Trainer.accumulation_steps",
        ),
        (
            {
                "optimizer": lambda: keras.optimizers.LossScaleOptimizer(
                    keras.optimizers.SGD()
                )
            },
            "Use the inner optimizer",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_to_three_lines(options, message):
    with pytest.raises(UserError, match=message) as raised:
        make(**options).train(1)
    said = str(raised.value).split("\n  In call to configurable")[0]
    assert 1 <= len(said.splitlines()) <= 3
