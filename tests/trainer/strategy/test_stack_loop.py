"""Steps over a stack of batches are the steps of the plain graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import (
    ArrayExamples,
    Guard,
    Trainer,
    UserError,
    average,
)

STEPS = 25
_RANDOM = np.random.default_rng(0)
# Six batches of eight, and one of five: stacks end there.
X = _RANDOM.normal(size=(53, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2] * 0.5
TOKENS = _RANDOM.integers(0, 20, size=(53, 3))


def hidden(*layers):
    def model():
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6), *(f() for f in layers)]
            + [keras.layers.Dense(1)]
        )

    return model


def embedding():
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int64"),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


class OwnStep(Trainer):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = self.model(x, training=True) - y
            loss = tf.reduce_mean(error**2)
        variables = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, average(loss), variables))
        return {"loss": loss}


@keras.saving.register_keras_serializable()
class Largest(keras.metrics.Metric):
    """A state that does not add up."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y, y_pred, sample_weight=None):
        found = keras.ops.max(keras.ops.abs(y_pred - y))
        self.largest.assign(keras.ops.maximum(self.largest, found))

    def result(self):
        return self.largest


WAYS = {
    "schedule_and_metrics": {
        "optimizer": lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(0.1, 20)
        ),
        "metrics": [keras.metrics.MeanAbsoluteError],
    },
    "momentum_and_norm": {
        "model": hidden(keras.layers.BatchNormalization),
        "optimizer": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    },
    "dropout": {"model": hidden(lambda: keras.layers.Dropout(0.3))},
    "clipped_averaged_and_guarded": {
        "optimizer": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
        "ema_momentum": 0.9,
        "guard": Guard(),
    },
    "loss_scale": {"precision": "mixed_float16"},
    "embedding": {"model": embedding, "data": lambda split: (TOKENS, Y)},
    "own_step": {"kind": OwnStep},
    "one_device": {"strategy": "one_device"},
}
# The ordinary set has what a stack could treat in another way.
ORDINARY = ("clipped_averaged_and_guarded",)


def make(form, *, kind=Trainer, **options):
    return kind(
        **{
            "model": hidden(),
            "loss": "mse",
            "optimizer": lambda: keras.optimizers.SGD(0.05),
            "data": lambda split: (X, Y),
            "batch_size": 8,
            "strategy": "default",
            "jit_compile": form,
            **options,
        }
    )


def arrays(trainer):
    parts = trainer._built.parts
    averages = [] if parts.ema is None else parts.ema.variables
    every = [
        *trainer.model.variables,
        *averages,
        *(v for one in parts.optimizers.values() for v in one.variables),
    ]
    return [np.asarray(variable) for variable in every]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[] if way in ORDINARY else [pytest.mark.long])
        for way in WAYS
    ],
)
def test_it_is_the_same_step_wherever_calls_end(way):
    """Like the graph's up to rounding; to the byte however it is cut."""
    plain, whole, cut = (
        make(form, **WAYS[way]) for form in ("graph", "xla_stack", "xla_stack")
    )
    found = whole.train(STEPS, log_every=STEPS)
    # XLA makes other floating-point numbers of the same random bits.
    if way != "dropout":
        expected = plain.train(STEPS, log_every=STEPS)
        assert found == pytest.approx(expected, rel=2e-3)
        for left, right in zip(arrays(plain), arrays(whole), strict=True):
            np.testing.assert_allclose(
                left.astype("float64"), right, rtol=2e-3, atol=2e-4
            )
    for end in (1, 9, 10, STEPS):
        # Each call reads its input anew, as a run that goes on does.
        cut.train(end, steps_per_loop=4, log_every=STEPS)
    for left, right in zip(arrays(whole), arrays(cut), strict=True):
        assert left.tobytes() == right.tobytes()
    assert cut._built.last._reporter.logs["loss"] == found["loss"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"metrics": [Largest]}, "the host updates the metric 'largest'"),
        ({"accumulation_steps": 2}, "cannot be combined with accumulation"),
        ({"strategy": "mirrored"}, "'mirrored' takes no stacks of batches"),
        (
            {
                "data": lambda split: tf.data.Dataset.from_tensor_slices(
                    (X, Y)
                ).batch(8)
            },
            "takes rows of arrays, but the data is read in its order",
        ),
        (
            {
                "data": lambda split: ArrayExamples(
                    (X, Y), transform=lambda x, y: (x * 2.0, y)
                )
            },
            "or have a transform",
        ),
    ],
    ids=["metric", "accumulation", "strategy", "data", "transform"],
)
def test_it_is_refused_before_the_first_step(options, reason):
    trainer = make("xla_stack", **options)
    with pytest.raises(UserError, match=reason):
        trainer.train(3)
    assert trainer.step == 0
