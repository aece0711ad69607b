"""`find_nan` names where the first value arises that is not finite."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import ARRAYS, assert_same, make_trainer
from tests.sets import ordinary
from trainer import Diverged, Guard, Trainer, UserError
from trainer_plugins.callbacks.checkpoint import Checkpoint

X, Y = ARRAYS
# One example makes the step that takes it bad.
SPECIAL = X.copy()
SPECIAL[37] = 5.0


def batches(x=SPECIAL, y=Y):
    """In their order, so that the fifth step takes it."""
    return {"train": tf.data.Dataset.from_tensor_slices((x, y)).batch(8)}


class Reciprocal(keras.layers.Layer):
    """Infinite for the special example."""

    def call(self, x):
        return x / (5.0 - tf.reduce_max(x, axis=1, keepdims=True))


class Root(keras.layers.Layer):
    """Zero for the special example, where its gradient is infinite."""

    def call(self, x):
        return tf.sqrt(tf.reduce_max(tf.abs(x - 5.0), axis=1, keepdims=True))


def net(*layers):
    return lambda: keras.Sequential(
        [
            keras.Input((3,)),
            *(layer() for layer in layers),
            keras.layers.Dense(4, name="hidden"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, name="out"),
        ]
    )


def rooted():
    """A layer with weights before the root, so that there is a gradient."""
    inputs = keras.Input((3,))
    scale = keras.layers.EinsumDense(
        "bi,i->bi", output_shape=(3,), kernel_initializer="ones", name="scale"
    )
    outputs = keras.layers.Dense(1)(Root(name="root")(scale(inputs)))
    return keras.Model(inputs, outputs)


class BadLoss(Trainer):
    def per_example_loss(self, x, y, y_pred):
        log = tf.math.log(5.0 - tf.reduce_max(x, axis=1))
        return tf.reduce_sum(y_pred, axis=1) * log


def of_input():
    x = SPECIAL.copy()
    x[37, 1] = np.nan
    return x


CASES = {
    "the input": (
        {"model": net(), "data": batches(of_input())},
        "the data, x, in rows 5: 1 of 24 values are nan",
    ),
    "a layer": (
        {"model": net(Reciprocal)},
        r"the output of the layer '[\w/]*reciprocal\w*' \(Reciprocal\): .*inf",
    ),
    "the loss": (
        {"model": net(), "kind": BadLoss, "loss": None},
        "the loss of the examples: 1 of 8 values are",
    ),
    "a gradient": (
        {"model": rooted, "learning_rate": 0.0},
        r"the backward pass of the layer 'root' \(Root\), into its input: "
        ".*, with the gradient of scale/kernel",
    ),
    "micro-batches": (
        {"model": net(Reciprocal), "accumulation_steps": 2},
        "the output of the layer",
    ),
    "the form xla": (
        {"model": net(Reciprocal), "jit_compile": True},
        "the output of the layer",
    ),
    "mirrored": (
        {"model": net(Reciprocal), "strategy": "mirrored"},
        r"the output of the layer '[\w/]*reciprocal",
    ),
    "central_storage": (
        {"model": net(Reciprocal), "strategy": "central_storage"},
        r"the output of the layer '[\w/]*reciprocal",
    ),
    "xla_stack": (
        {
            "model": net(Reciprocal),
            "jit_compile": "xla_stack",
            "data": lambda split: (SPECIAL, Y),
        },
        r"the output of the layer '[\w/]*reciprocal",
    ),
}


@pytest.mark.parametrize("name", ordinary(CASES, ["a gradient"]))
def test_it_names_the_place(name):
    options, words = CASES[name]
    options = {"data": batches(), "jit_compile": "graph", **options}
    trainer = make_trainer(find_nan=True, **options)
    with pytest.raises(Diverged, match=f"which first arises in {words}") as e:
        trainer.train(40, steps_per_loop=20, verbose=0)
    if name != "xla_stack":
        assert "after step 4, on batch 4" in str(e.value)
    # And nothing has become different from a run that does not look.
    other = make_trainer(guard=Guard(), **options)
    with pytest.raises(Diverged):
        other.train(40, steps_per_loop=20, verbose=0)
    assert trainer.step == other.step
    assert_same(trainer.model.get_weights(), other.model.get_weights())


@pytest.mark.long
def test_the_update():
    """No gradient is bad: the guard alone would see it a step later."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [6], [1e-3, 3e38]
    )
    trainer = make_trainer(
        net(),
        optimizer=lambda: keras.optimizers.SGD(schedule),
        data=lambda split: (X, 1000 * Y),
        find_nan=True,
        jit_compile="graph",
    )
    with pytest.raises(Diverged) as error:
        trainer.train(16, steps_per_loop=4, verbose=0)
    assert "after step 7" in str(error.value)
    assert (
        "which first arises in the update, from finite gradients, of the "
        "variable sequential" in str(error.value)
    )


@pytest.mark.long
def test_a_run_that_rolls_back(tmp_path):
    trainer = make_trainer(
        net(Reciprocal),
        data=lambda split: (SPECIAL, Y),
        guard=Guard("roll_back"),
        find_nan=True,
    )
    trainer.train(
        12,
        steps_per_loop=3,
        model_dir=str(tmp_path),
        callbacks=[Checkpoint(every=3)],
        verbose=0,
    )
    assert trainer.step == 12
    assert np.isfinite(trainer.model.get_weights()[0]).all()
    text = (tmp_path / "skipped_batches.json").read_text()
    assert "the output of the layer" in text


@pytest.mark.long
def test_a_strategy_without_numbered_batches():
    trainer = make_trainer(net(), find_nan=True)
    options = trainer.plugin.options
    trainer.plugin.__dict__["options"] = type(options)(batches_by_step=False)
    with pytest.raises(UserError, match="it is not known which batch"):
        trainer.build()
