"""Numbers without a row: XLA passes over them, a run does not."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import saved_steps
from trainer import ArrayExamples, IndexedBatches, Trainer, UserError
from trainer_plugins import Checkpoint

ROWS = 10
STEPS = 12
XLA = pytest.mark.parametrize("form", ["xla", "xla_stack"])


def model():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(ROWS, 3, name="words"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )


def arrays(*, wrong=None, at=0, size=96):
    """Numbers of rows and classes; `wrong` is one of them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, ROWS, (size, 4)).astype("int32")
    if wrong is not None:
        x[at, 1] = wrong
    return x, rng.integers(0, 2, size)


def make(data, *, kind=Trainer, **options):
    return kind(
        model=options.pop("model", model),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=functools.partial(keras.optimizers.Adam, 0.01),
        # In their order.
        data=lambda split: IndexedBatches(ArrayExamples(data), batch_size=8),
        **options,
    )


def weights(trainer):
    return [np.asarray(w) for w in trainer.model.get_weights()]


@XLA
def test_a_number_without_a_row_ends_the_run_and_nothing_is_saved(
    form, tmp_path
):
    trainer = make(arrays(wrong=ROWS, at=50), jit_compile=form)
    said = (
        r"batches up to step 8 hold numbers \(1\) that are out of bounds of a "
        r"lookup: "
        r"'words': rows 0 to 9\. .*--jit_compile=graph"
    )
    with pytest.raises(UserError, match=said):
        trainer.train(
            STEPS,
            model_dir=str(tmp_path),
            steps_per_loop=4,
            callbacks=[Checkpoint(every="2 steps")],
        )
    assert saved_steps(tmp_path)[-1] == 6


def test_a_graph_ends_at_the_number():
    trainer = make(arrays(wrong=ROWS, at=50), jit_compile="graph")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 10 is not in"):
        trainer.train(STEPS)


@pytest.mark.parametrize(
    ("form", "accumulation"), [("xla", 1), ("xla", 2), ("xla_stack", 1)]
)
def test_what_is_within_bounds_trains_as_ever(form, accumulation):
    found = []
    for one in (form, "graph"):
        trainer = make(
            arrays(), jit_compile=one, accumulation_steps=accumulation
        )
        trainer.train(STEPS)
        found.append(weights(trainer))
    for ours, graph in zip(*found, strict=True):
        np.testing.assert_allclose(ours, graph, rtol=2e-5, atol=1e-6)


class Conditional(Trainer):
    """Looks something up where a condition holds."""

    def forward(self, x, training=False):
        table = tf.reshape(tf.range(20.0), [10, 2])
        found = tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: tf.gather(table, x[:, 0]),
            lambda: tf.zeros([tf.shape(x)[0], 2]),
        )
        return self.model(x, training=training) + 0.0 * found


def test_a_lookup_that_cannot_be_checked_is_not_compiled():
    trainer = make(arrays(), kind=Conditional)
    trainer.train(520, verbose=0)
    assert trainer._run.spec.form == "graph"
