"""Loss terms equal what Keras computes on one device."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.step.losses.loss_terms import loss_term

RNG = np.random.default_rng(1)
REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight")


class Given(keras.losses.Loss):
    """Returns the values it is given, with Keras' own reduction."""

    def __init__(self, mask, **options):
        super().__init__(**options)
        self.mask = mask

    def call(self, y_true, y_pred):
        return with_mask(tf.identity(y_pred), self.mask)


def with_mask(values, mask):
    tensor = tf.convert_to_tensor(values)
    if mask is not None:
        tensor._keras_mask = tf.constant(mask)
    return tensor


@pytest.mark.parametrize(
    ("reduction", "weighted", "masked", "shape"),
    list(
        itertools.product(REDUCTIONS, (False, True), (0, 1, 2), [(6,), (6, 4)])
    ),
)
def test_equals_keras_in_parts_of_any_size(reduction, weighted, masked, shape):
    values = RNG.uniform(0.5, 2.0, size=shape).astype("float32")
    weight = RNG.uniform(0.1, 3.0, size=6).astype("float32")
    # Keras itself takes one weight an example only as a column.
    weight = weight.reshape(6, *[1] * (len(shape) - 1))
    # Of the output, and of what its loss returned.
    mask = RNG.uniform(size=shape) > 0.4 if masked else None
    other = None
    if masked == 2:
        other = RNG.uniform(size=shape) > 0.3
        mask[0] = other[0] = True
    expected = Given(other, reduction=reduction)(
        tf.zeros(shape),
        with_mask(values, mask),
        sample_weight=weight if weighted else None,
    )
    # Three replicas with 4, 2 and no examples.
    total, count = 0.0, 0.0
    for part in (slice(0, 4), slice(4, 6), slice(6, 6)):
        term = loss_term(
            with_mask(values[part], None if other is None else other[part]),
            name="loss",
            reduction=reduction,
            examples=tf.constant(float(len(values[part]))),
            parts=3,
            sample_weight=tf.constant(weight[part]) if weighted else None,
            mask=None if mask is None else tf.constant(mask[part]),
        )
        total, count = total + float(term.total), count + float(term.count)
    assert total / count == pytest.approx(float(expected), rel=1e-5)
