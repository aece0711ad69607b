"""Numbers of all types, in the form in which replicas sum them."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.step.measuring import as_floats, from_floats

MOST = np.iinfo("int64").max


@pytest.mark.parametrize(
    "whole",
    [
        np.array([2**60 + 3, -5, 0, MOST, -MOST - 1]),
        np.array([2**64 - 1, 2**53 + 1, 7], "uint64"),
        np.array([2**31 - 1, -(2**31)], "int32"),
        np.array([255, 1], "uint8"),
        np.array([True, False]),
        np.array([1.5, -2.25], "float32"),
    ],
    ids=lambda whole: whole.dtype.name,
)
def test_sums_over_replicas_are_exact(whole):
    """Each row is one replica's, and zero on the others."""
    rows = np.arange(len(whole)) % 2 == 0
    replicas = [np.where(rows, whole, 0), np.where(rows, 0, whole)]
    parts = [as_floats(tf.constant(r, whole.dtype)) for r in replicas]
    sums = [a + b for a, b in zip(*parts, strict=True)]
    assert all(part.dtype.is_floating for part in sums)
    np.testing.assert_array_equal(from_floats(sums, whole.dtype), whole)
