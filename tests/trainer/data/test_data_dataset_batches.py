from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from tests.helpers import assert_same, linear, make_trainer
from trainer import UserError
from trainer.data import DatasetBatches, Resume

BATCHES = [np.r_[0:6], np.r_[6:12], np.r_[12:16]]


def dataset():
    return tf.data.Dataset.range(16).batch(6)


def read(
    batches, count, *, replicas=None, num_replicas=1, micro=1, start=0, every=1
):
    if replicas is None:
        replicas = range(num_replicas)
    pieces = batches.pieces(
        start=start,
        every=every,
        replicas=replicas,
        num_replicas=num_replicas,
        micro=micro,
    )
    return list(pieces.take(count).as_numpy_iterator())


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7])
def test_skips_to_a_step_and_repeats(start):
    batches = DatasetBatches(dataset, batch_size=6)
    assert_same(
        read(batches, 4, start=start),
        [BATCHES[step % 3] for step in range(start, start + 4)],
    )
    assert batches.resume is Resume.SKIP
    assert batches.steps_per_epoch == 3


@pytest.mark.parametrize("num_replicas", [1, 2, 5, 8])
@pytest.mark.parametrize("micro", [1, 2, 3])
def test_pieces_are_the_global_batch_in_order(num_replicas, micro):
    batches = DatasetBatches(dataset, batch_size=6)
    per_step = num_replicas * micro
    pieces = read(
        batches,
        3 * per_step,
        start=1,
        num_replicas=num_replicas,
        micro=micro,
    )
    joined = [
        np.concatenate(pieces[i : i + per_step])
        for i in range(0, len(pieces), per_step)
    ]
    assert_same(joined, [BATCHES[1], BATCHES[2], BATCHES[0]])


def test_several_pipelines_read_what_one_would():
    batches = DatasetBatches(dataset, batch_size=6)
    whole = read(batches, 3 * 2 * 4, num_replicas=4, micro=2)
    for replicas in (range(2), range(2, 4)):
        mine = read(
            batches, 3 * 2 * 2, replicas=replicas, num_replicas=4, micro=2
        )
        assert_same(
            mine, [whole[4 * g + r] for g in range(6) for r in replicas]
        )


def test_an_epoch_of_unknown_length_is_counted():
    def unknown():
        return dataset().filter(lambda batch: batch[0] < 12)

    assert DatasetBatches(unknown, batch_size=None).steps_per_epoch == 2


def test_an_evaluation_of_a_run_that_is_done():
    trainer = make_trainer(linear)
    trainer.train(3)
    # What was logged at the end only because it was the end is not kept.
    assert trainer.train_and_evaluate(3) == {
        f"val_{name}": value for name, value in trainer.evaluate().items()
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tf.data.Dataset.range(16).batch(4, drop_remainder=True),
            "mine yields batches of 4 examples, but batch_size = 6",
        ),
        (lambda: tf.data.Dataset.range(16), "mine yields single examples"),
        (lambda: dataset().take(0), "mine yields no batches"),
        (
            lambda: dataset().filter(lambda batch: batch[0] < 0),
            "mine yields no batches",
        ),
    ],
)
def test_refused_datasets(make, message):
    with pytest.raises(UserError, match=message):
        DatasetBatches(make, batch_size=6, name="mine")


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
        return make_trainer(
            linear,
            data=pairs,
            batch_size=6,
        )

    assert "val_loss" in make().train_and_evaluate(4, eval_steps=2)
    with (
        mock.patch("trainer.data.dataset_batches.MOST_COUNTED", 50),
        pytest.raises(UserError, match="set steps, or run.eval_steps"),
    ):
        make().evaluate()
