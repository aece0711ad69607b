import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from trainer import UserError
from trainer.data import ArrayExamples, Examples, IndexedBatches


def gather(examples, numbers):
    """Gathers as an input pipeline does, in a graph."""
    numbers = tf.constant(numbers, tf.int64)
    dataset = tf.data.Dataset.from_tensors(numbers).map(examples.gather)
    return next(dataset.as_numpy_iterator())


class Conditional(Examples):
    """Reads with a condition over a tensor."""

    size, shuffle = 8, False

    def gather(self, numbers):
        x = tf.cast(numbers, tf.float32)
        if tf.reduce_sum(x) > 10.0:
            x = -x
        return x


def negative_if_large(x):
    if tf.reduce_sum(x) > 10.0:
        x = -x
    return x


@pytest.mark.parametrize(
    "examples",
    [
        Conditional(),
        ArrayExamples(
            np.arange(8, dtype="float32"),
            transform=negative_if_large,
            shuffle=False,
        ),
    ],
)
def test_research_code_may_have_conditions_over_tensors(examples):
    batches = IndexedBatches(examples, batch_size=4)
    pieces = batches.pieces(start=0, replicas=range(1), num_replicas=1, micro=1)
    one_by_one = [x.tolist() for x in pieces.take(2).as_numpy_iterator()]
    assert one_by_one == [[0, 1, 2, 3], [-4, -5, -6, -7]]
    (stack,) = batches.stacks(start=0, stop=2)
    assert stack.batches.numpy()[:2].tolist() == one_by_one


def test_rows_come_in_the_order_asked_for():
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4, dtype=np.int32)
    rows = gather(ArrayExamples((x, y)), [3, 0, 3])
    np.testing.assert_array_equal(rows[0], x[[3, 0, 3]])
    np.testing.assert_array_equal(rows[1], [3, 0, 3])
    assert rows[0].dtype == np.float64
    assert rows[1].dtype == np.int32


@pytest.mark.parametrize("arrays", [np.arange(3), {"x": np.arange(3)}])
def test_transform_takes_another_structure_whole(arrays):
    examples = ArrayExamples(
        arrays, transform=lambda batch: tf.nest.map_structure(tf.square, batch)
    )
    rows = gather(examples, [2])
    assert tf.nest.flatten(rows)[0] == [4]


@pytest.mark.parametrize(
    ("arrays", "lengths"),
    [
        ((), r"\[\]"),
        ((np.zeros(3), np.zeros(4)), r"\[3, 4\]"),
        (np.zeros([0, 2]), r"\[0\]"),
        ((np.zeros(3), np.float32(1)), r"\[3, 0\]"),
    ],
)
def test_refused_arrays(arrays, lengths):
    with pytest.raises(UserError, match=f"lengths are {lengths}"):
        ArrayExamples(arrays)


ONE_COPY = """
import gc, os, sys
import numpy as np
from trainer.data import ArrayExamples, IndexedBatches

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def read(rows, transform):
    examples = ArrayExamples(
        np.ones([rows, 1 << 10], "float32"), transform=transform
    )
    batches = IndexedBatches(examples, batch_size=4, shuffle=True)
    iterators = [iter(batches.whole(0)), iter(batches.stacks(start=0))]
    for iterator in iterators:
        next(iterator)
    gc.collect()
    return batches, iterators

transform = {"None": None, "doubled": lambda x: 2 * x}[sys.argv[1]]
read(64, transform)
before = resident_bytes()
kept = read(32 << 10, transform)
print((resident_bytes() - before) / (128 << 20))
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="no /proc to read"
)
@pytest.mark.parametrize("transform", ["None", "doubled"])
def test_one_copy_of_the_arrays_is_kept(transform):
    # In a process of its own: this one may have pages of others' to reuse.
    done = subprocess.run(
        [sys.executable, "-c", ONE_COPY, transform],
        capture_output=True,
        text=True,
        check=True,
    )
    # Neither the array that was given, nor one in each iterator.
    assert 0.9 < float(done.stdout) < 1.5
