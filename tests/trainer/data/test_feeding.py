import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import (
    ArrayExamples,
    DatasetBatches,
    IndexedBatches,
    Trainer,
    UserError,
)
from trainer.data.feeding import exact, feeder, padded

X = np.arange(1.0, 11.0, dtype="float32")[:, None] * [1, 10]


def arrays():
    return IndexedBatches(ArrayExamples((X, X[:, 0])), batch_size=6)


def dataset():
    made = tf.data.Dataset.from_tensor_slices((X, X[:, 0])).batch(6)
    return DatasetBatches(lambda: made, batch_size=6)


def varying(rows):
    """Pieces with a given number of rows, numbered through from 1."""
    ends = np.cumsum(rows)

    def pieces():
        for count, end in zip(rows, ends, strict=True):
            yield np.arange(end - count + 1, end + 1)

    return tf.data.Dataset.from_generator(
        pieces, output_signature=tf.TensorSpec([None], tf.int64)
    ).repeat()


@pytest.mark.parametrize("source", [arrays, dataset])
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 6])
def test_every_example_is_real_once(source, num_replicas):
    make = feeder(
        source(), start=0, num_replicas=num_replicas, micro=1, fit=padded
    )
    pieces = list(make(range(num_replicas)).take(2 * num_replicas))
    size = 6 // num_replicas
    seen = []
    for (x, y), real in pieces:
        assert x.shape == (size, 2)
        assert y.shape == real.shape == (size,)
        np.testing.assert_array_equal(x[:, 0], y)
        seen.extend(np.asarray(y)[np.asarray(real) == 1])
        assert set(np.unique(real)) <= {0.0, 1.0}
    np.testing.assert_array_equal(seen, X[:, 0])


@pytest.mark.parametrize("source", [arrays, dataset])
@pytest.mark.parametrize("fit", [padded, exact])
def test_shapes_are_known_before_a_step(source, fit):
    make = feeder(source(), start=0, num_replicas=3, micro=2, fit=fit)
    for spec in tf.nest.flatten(make(range(3)).element_spec):
        assert spec.shape.is_fully_defined()
        assert spec.shape[0] == 1


def test_padding_repeats_the_last_example():
    pieces = padded(varying([3, 2, 0, 1]), 3).take(4)
    got = [
        (batch.numpy().tolist(), real.numpy().tolist())
        for batch, real in pieces
    ]
    assert got == [
        ([1, 2, 3], [1, 1, 1]),
        ([4, 5, 5], [1, 1, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([6, 6, 6], [1, 0, 0]),
    ]


def test_structures_of_every_dtype_are_kept():
    made = tf.data.Dataset.from_tensors(
        {"a": tf.constant([[True]]), "b": (tf.constant(["word"]), [7])}
    )
    (batch, real), *_ = padded(made.repeat(), 2).take(1)
    assert batch["a"].numpy().tolist() == [[True], [True]]
    assert batch["b"][0].numpy().tolist() == [b"word"] * 2
    assert batch["b"][1].numpy().tolist() == [7, 7]
    assert real.numpy().tolist() == [1, 0]


def test_more_rows_than_a_full_piece_are_not_lost_silently():
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 2"):
        list(padded(varying([3]), 2).take(1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            tf.TensorSpec([None, None, 3], tf.float32),
            r"part image of a batch has the shape \(None, None, 3\).*Pad or",
        ),
        (tf.TensorSpec(None, tf.float32), "part image .* <unknown>"),
        (tf.TensorSpec([], tf.float32), r"part image .* the shape \(\)"),
        (
            tf.RaggedTensorSpec([None, None], tf.float32),
            "part image of a batch is a RaggedTensor",
        ),
    ],
)
def test_what_has_no_fixed_shape_is_named(spec, message):
    made = tf.data.Dataset.from_generator(
        lambda: iter(()), output_signature={"image": spec}
    )
    for fit in (padded, exact):
        with pytest.raises(UserError, match=message):
            fit(made, 2)


def test_batches_must_be_cut_evenly():
    with pytest.raises(UserError, match="batch_size = 6 must be a multiple"):
        feeder(arrays(), start=0, num_replicas=4, micro=1, fit=padded)


@pytest.mark.parametrize("strategy", ["default", "mirrored", "central_storage"])
def test_no_iterator_over_arrays_is_tuned(strategy, monkeypatch):
    """One that is takes up to a minute to be dropped, at the end of a run."""
    tuned, iterate = [], tf.data.Dataset.__iter__

    def spied(self):
        tuned.append(self.options().autotune.enabled)
        return iterate(self)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", spied)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    trainer = Trainer(model, loss="mse", strategy=strategy)
    trainer.fit(X, X[:, 0], batch_size=4, validation_split=0.2, verbose=0)
    assert len(tuned) > 1
    assert set(tuned) == {False}
