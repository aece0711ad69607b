"""What data may be: arrays, examples, datasets, or a function of the split."""

import os
import subprocess
import sys
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from tests.helpers import linear, make_trainer
from trainer import (
    ArrayExamples,
    DatasetBatches,
    IndexedBatches,
    Trainer,
    UserError,
)


def batches_of(data, split="train", **options):
    options = {"batch_size": 4, "seed": 1} | options
    return Trainer(keras.Sequential, data=data, **options).batches(split)


def first_epoch(batches):
    found = batches.read(start=0).take(batches.steps_per_epoch)
    return np.concatenate(list(found.as_numpy_iterator()))


def test_a_function_gets_the_arguments_that_it_names():
    calls = []

    def few(split):
        calls.append({"split": split})
        return np.arange(8)

    def all_of_them(*, split, batch_size, seed, data_dir=None):
        calls.append(dict(locals(), calls=None))
        return np.arange(8)

    def any_of_them(**given):
        calls.append(given)
        return np.arange(8)

    batches_of(few, "eval")
    batches_of(all_of_them, data_dir="/somewhere")
    batches_of(any_of_them)
    expected = {"split": "train", "batch_size": 4, "seed": 1}
    assert calls[0] == {"split": "eval"}
    assert calls[1].items() >= {**expected, "data_dir": "/somewhere"}.items()
    assert calls[2] == expected


def test_arrays_are_shuffled_for_training_only():
    def numbers(split):
        return np.arange(50)

    batches = batches_of(numbers)
    assert isinstance(batches, IndexedBatches)
    train = first_epoch(batches)
    assert (train != np.arange(50)).any()
    np.testing.assert_array_equal(np.sort(train), np.arange(50))
    np.testing.assert_array_equal(
        first_epoch(batches_of(numbers, "eval")), np.arange(50)
    )
    assert (first_epoch(batches_of(numbers, seed=2)) != train).any()


def test_a_dataset_is_made_anew_for_each_iterator():
    made = []

    def numbers(split, batch_size):
        made.append(split)
        return tf.data.Dataset.range(8).batch(batch_size)

    batches = batches_of(numbers)
    assert isinstance(batches, DatasetBatches)
    before = len(made)
    first_epoch(batches)
    first_epoch(batches)
    assert len(made) == before + 2


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return np.full((4, 2), number, "float32"), np.ones((4, 1), "float32")


def test_a_function_returns_what_fit_takes():
    def lists(split):
        return [[1.0, 2.0]] * 8, [0.5] * 8

    x, y = batches_of(lists).element_spec
    assert (x.dtype, y.dtype) == (tf.float32, tf.float32)
    assert x.shape.as_list() == [4, 2]
    batches = batches_of(lambda split: Pairs())
    assert (batches.batch_size, batches.steps_per_epoch) == (4, 3)
    read = batches.read(start=0).take(3).as_numpy_iterator()
    assert sorted(int(x[0, 0]) for x, _ in read) == [0, 1, 2]


def memory(split):
    return np.arange(8)


def wrong(split):
    return 3.5


def training_only():
    return np.arange(8)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (memory, {"data_dir": "/x"}, "'/x': memory does not read files"),
        (wrong, {}, r"wrong\(split='train'\) is a float"),
        (training_only, {"split": "eval"}, "training_only takes no split"),
    ],
)
def test_refused_functions(data, options, message):
    with pytest.raises(UserError, match=message):
        batches_of(data, **options)


def numbers(size):
    return tf.data.Dataset.range(16).batch(size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tf.data.Dataset.range(16).batch(4, drop_remainder=True),
            "mine yields batches of 4 examples, but batch_size = 6",
        ),
        (lambda: numbers(4), "mine yields batches of 4 examples, but"),
        (lambda: numbers(7), "mine yields batches of 7 examples, but"),
        (lambda: tf.data.Dataset.range(16), "mine yields single examples"),
        (lambda: numbers(6).take(0), "mine yields no batches"),
        (
            lambda: numbers(6).filter(lambda batch: batch[0] < 0),
            "mine yields no batches",
        ),
    ],
)
def test_refused_datasets(make, message):
    with pytest.raises(UserError, match=message):
        DatasetBatches(make, batch_size=6, name="mine")


def test_a_strategy_of_one_shape_refuses_what_may_yield_another():
    with pytest.raises(UserError, match="mine may yield .* drop_remainder=Tr"):
        DatasetBatches(
            lambda: numbers(6), batch_size=6, name="mine", drop_remainder=True
        )


def test_the_only_batch_may_be_short():
    batches = DatasetBatches(lambda: numbers(16), batch_size=20)
    assert (batches.batch_size, batches.steps_per_epoch) == (20, 1)


def test_an_epoch_of_unknown_length_is_counted():
    def unknown():
        return numbers(6).filter(lambda batch: batch[0] < 12)

    assert DatasetBatches(unknown, batch_size=None).steps_per_epoch == 2


def never_ending(read):
    """A generator that ends for nobody; `read` counts what it gave."""

    def generate():
        while True:
            read.append(1)
            assert len(read) < 1000, "it is read through"
            yield np.ones((6, 3), "float32")

    spec = tf.TensorSpec([None, 3], tf.float32)
    return lambda: tf.data.Dataset.from_generator(
        generate, output_signature=spec
    )


def test_a_never_ending_generator_is_read_as_far_as_the_run_goes():
    read = []
    batches = DatasetBatches(never_ending(read), batch_size=6, name="mine")
    with mock.patch.object(logging, "warning") as said:
        batches.learn_length(at_most=20)
    assert "reading up to" in said.call_args.args[0]
    assert said.call_args.args[1:] == ("mine", 20)
    assert batches.steps_per_epoch is None
    assert len(read) < 30


def test_a_run_on_a_never_ending_generator_ends():
    def pairs(split):
        return never_ending([])().map(lambda x: (x, x[:, :1]))

    def make():
        return make_trainer(linear, data=pairs, batch_size=6)

    assert "val_loss" in make().train_and_evaluate(4, eval_steps=2)
    with (
        mock.patch("trainer.data.dataset_batches.MOST_COUNTED", 50),
        pytest.raises(UserError, match="set steps, or run.eval_steps"),
    ):
        make().evaluate()


def gather(examples, numbers):
    """Gathers as an input pipeline does, in a graph."""
    numbers = tf.constant(numbers, tf.int64)
    dataset = tf.data.Dataset.from_tensors(numbers).map(examples.gather)
    return next(dataset.as_numpy_iterator())


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
from trainer import ArrayExamples, IndexedBatches

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def read(rows, transform):
    examples = ArrayExamples(
        np.ones([rows, 1 << 10], "float32"), transform=transform
    )
    batches = IndexedBatches(examples, batch_size=4, shuffle=True)
    iterators = [iter(batches.read(start=0)) for _ in range(2)]
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
