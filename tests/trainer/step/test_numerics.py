"""`check_numerics` names the operation, and finds nothing in sound runs."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import assert_same, linear, make_trainer
from tests.sets import long
from trainer import Guard, UserError

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
BAD = X.copy()
BAD[37] = 0.0


class Root(keras.layers.Layer):
    def call(self, x):
        return tf.sqrt(tf.reduce_max(tf.abs(x), axis=1, keepdims=True))


def rooted():
    inputs = keras.Input((3,))
    scaled = keras.layers.EinsumDense("bi,i->bi", (3,), name="scale")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(Root()(scaled)))


@pytest.mark.parametrize("strategy", ["default", "mirrored"])
def test_the_operation_is_named(strategy):
    """The root of zero is finite, and its gradient is not."""
    trainer = make_trainer(
        rooted,
        data={"train": tf.data.Dataset.from_tensor_slices((BAD, X)).batch(8)},
        strategy=strategy,
        check_numerics=True,
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        trainer.train(8, steps_per_loop=1, verbose=0)
    assert trainer.step == 4
    assert re.search(r"gradient_tape/.*/root\w*/SqrtGrad", str(error.value))


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "mirrored", "guard": Guard(max_growth=100.0)},
        long({"accumulation_steps": 2, "ema_momentum": 0.9}),
    ],
)
def test_it_changes_nothing(options):
    found = []
    for check in (True, False):
        trainer = make_trainer(
            linear, jit_compile="graph", check_numerics=check, **options
        )
        trainer.train_and_evaluate(20, verbose=0)
        found.append(trainer.model.get_weights())
    assert_same(*found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jit_compile": True}, "XLA makes others of the operations"),
        ({"precision": "mixed_float16"}, "overflow on purpose"),
    ],
)
def test_what_is_refused(options, words):
    trainer = make_trainer(linear, check_numerics=True, **options)
    with pytest.raises(UserError, match=words):
        trainer.train(1, verbose=0)
