import numpy as np
import pytest
import tensorflow as tf

from trainer import UserError
from trainer.data import (
    DatasetBatches,
    IndexedBatches,
    as_batches,
)


def resolve(data, split="train", **options):
    options = {"batch_size": 4, "seed": 1} | options
    return as_batches(data, split=split, **options)


def first_epoch(batches):
    pieces = batches.pieces(start=0, replicas=range(1), num_replicas=1, micro=1)
    return np.concatenate(
        list(pieces.take(batches.steps_per_epoch).as_numpy_iterator())
    )


def test_a_plugin_gets_the_arguments_that_it_names():
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

    resolve(few, "eval")
    resolve(all_of_them, data_dir="/somewhere")
    resolve(any_of_them)
    expected = {"split": "train", "batch_size": 4, "seed": 1}
    assert calls[0] == {"split": "eval"}
    assert calls[1].items() >= {**expected, "data_dir": "/somewhere"}.items()
    assert calls[2] == expected


def test_arrays_are_shuffled_for_training_only():
    def numbers(split):
        return np.arange(50)

    train = first_epoch(resolve(numbers))
    assert (train != np.arange(50)).any()
    np.testing.assert_array_equal(np.sort(train), np.arange(50))
    np.testing.assert_array_equal(
        first_epoch(resolve(numbers, "eval")), np.arange(50)
    )
    assert (first_epoch(resolve(numbers, seed=2)) != train).any()


@pytest.mark.parametrize(("split", "steps"), [("train", 2), ("eval", 3)])
def test_only_training_drops_a_short_batch(split, steps):
    batches = resolve(lambda split: np.arange(9), split, drop_remainder=True)
    assert isinstance(batches, IndexedBatches)
    assert batches.steps_per_epoch == steps


def test_a_dataset_is_made_anew_for_each_iterator():
    made = []

    def numbers(split, batch_size):
        made.append(split)
        return tf.data.Dataset.range(8).batch(batch_size)

    batches = resolve(numbers)
    assert isinstance(batches, DatasetBatches)
    before = len(made)
    first_epoch(batches)
    first_epoch(batches)
    assert len(made) == before + 2


def test_a_plugin_that_reads_no_files_refuses_data_dir():
    def memory(split):
        return np.arange(8)

    with pytest.raises(UserError, match="'/x': memory does not read files"):
        resolve(memory, data_dir="/x")


def test_a_result_that_is_no_data():
    def wrong(split):
        return 3.5

    with pytest.raises(UserError, match=r"wrong\(split='train'\).* a float"):
        resolve(wrong)
