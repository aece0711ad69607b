"""Evaluates and trains under a strategy whose batches have one shape.

    python -m tests.trainer.data.static_worker [CASE ...] DIR

writes what each case gave, or each of those named, to DIR/results.npz. The
strategy mirrors over three virtual CPUs. Of the last batch's two examples the
third replica gets none.
"""

import dataclasses
import os
import sys
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from tests.conformance import models
from tests.exactness import metric_models
from trainer import ArrayExamples, Trainer, average
from trainer_plugins import Mirrored

REPLICAS, BATCH, SIZE = 3, 12, 26
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight")


class StaticMirrored(Mirrored):
    name = "static_mirrored"
    options = dataclasses.replace(Mirrored.options, static_shapes=True)


class LoopingMirrored(StaticMirrored):
    """Runs micro-batches in a loop on each replica."""

    name = "looping_mirrored"
    options = dataclasses.replace(
        StaticMirrored.options, loops_on_replicas=True
    )


class ReducingMirrored(StaticMirrored):
    """Reduces logs in the step, and adds them up in the TPU's loop."""

    name = "reducing_mirrored"
    options = dataclasses.replace(StaticMirrored.options, reduces_logs=True)

    def runner(self, step, *, training):
        from trainer_plugins.strategies.tpu.strategy import HostLoop

        return HostLoop(step, self.strategy)


class Noting(Trainer):
    """Notes the shapes that its replicas see."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shapes = []

    def forward(self, x, *, training):
        # What is tried out before the first step is not a replica's.
        if tf.distribute.has_strategy():
            self.shapes += [leaf.shape for leaf in tf.nest.flatten(x)]
        return super().forward(x, training=training)


def arrays():
    """Inputs, targets in {0, 1} and weights."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(SIZE, 4)).astype("float32")
    y = (x[:, :1] + rng.normal(size=(SIZE, 1)) > 0).astype("float32")
    weight = rng.uniform(0.2, 2.0, size=SIZE).astype("float32")
    return x, y, weight


def tokens():
    inputs, labels = models.token_data()
    return inputs[:SIZE], labels[:SIZE], arrays()[2]


def linear():
    dense = keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((4,)), dense])


def examples(parts):
    return lambda split: ArrayExamples(parts, shuffle=False)


def dataset(parts):
    rows = tf.data.Dataset.from_tensor_slices(parts)
    return lambda split: rows.batch(BATCH, drop_remainder=split == "train")


def result(trainer, values):
    assert trainer.shapes
    pieces = REPLICAS * trainer._recipe.accumulation_steps
    for shape in trainer.shapes:
        assert shape.is_fully_defined(), shape
        assert shape[0] == BATCH // pieces, shape
    weights = {
        f"weight{i}": np.array(v) for i, v in enumerate(trainer.model.weights)
    }
    return {k: np.array(v) for k, v in values.items()} | weights


def evaluated(strategy, data, kind=Noting, **options):
    """What an evaluation gives, and the weights."""
    given = {"model": linear, "batch_size": BATCH, **options}
    trainer = kind(data=data, strategy=strategy, **given)
    return result(trainer, trainer.evaluate())


def reduction(strategy, data, count, name):
    return evaluated(
        strategy,
        data(arrays()[:count]),
        loss=keras.losses.BinaryCrossentropy(reduction=name),
        metrics=[
            keras.metrics.BinaryAccuracy,
            lambda: keras.metrics.AUC(num_thresholds=1000, name="auc"),
        ],
    )


def masked(strategy, count, name):
    return evaluated(
        strategy,
        examples(tokens()[:count]),
        model=models.token_model,
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=name
        ),
        metrics=[keras.metrics.SparseCategoricalAccuracy],
    )


class Added(keras.layers.Layer):
    def call(self, x):
        self.add_loss(3.0 + 0.0 * keras.ops.sum(x))
        return x


def structures(strategy):
    """Dicts in and out, a weight for one output alone, an added loss."""

    def build():
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        hidden = Added()(keras.layers.add([a, b]))
        outputs = {
            "p": keras.layers.Dense(1, name="p")(hidden),
            "q": keras.layers.Dense(2, name="q")(hidden),
        }
        return keras.Model({"a": a, "b": b}, outputs)

    x, y, weight = arrays()
    parts = (
        {"a": x, "b": 2 * x},
        {"p": y, "q": x[:, :2]},
        {"p": weight, "q": np.ones_like(weight)},
    )
    return evaluated(
        strategy,
        examples(parts),
        model=build,
        loss={
            "p": keras.losses.MeanSquaredError(),
            "q": keras.losses.MeanAbsoluteError(),
        },
        metrics={"p": [keras.metrics.MeanAbsoluteError]},
    )


def infinite(strategy):
    """Inputs alone, a loss that is not finite for values not in the data."""

    class Logarithm(Noting):
        def per_example_loss(self, x, y, y_pred):
            return -tf.math.log(x[:, 0])

    return evaluated(strategy, examples(np.exp(arrays()[0])), Logarithm)


def own_step(strategy):
    """An eval_step of one's own sees a weight of zero for padding."""

    class Own(Noting):
        def eval_step(self, batch):
            x, y, weight = batch
            self.forward(x, training=False)
            total = tf.reduce_sum(weight * y[:, 0])
            return {"mean": average(total, tf.reduce_sum(weight))}

    return evaluated(strategy, examples(arrays()[:2]), Own)


def delegated(strategy):
    """Calling the Trainer's own eval_step keeps the count of examples."""

    class Delegating(Noting):
        def eval_step(self, batch):
            return super().eval_step(batch)

    return evaluated(strategy, examples(arrays()), Delegating, loss="mse")


def in_order(strategy):
    """Metrics that do not add up; padding is no example to them."""
    trainer = Trainer(
        model=linear,
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.0),
        metrics=[
            lambda: metric_models.Decaying(name="decaying"),
            lambda: metric_models.LastValue(name="last"),
        ],
        data=examples(arrays()),
        batch_size=BATCH,
        strategy=strategy,
    )
    values = trainer.evaluate()
    scores = np.array(trainer.model(arrays()[0]))
    return {k: np.array(v) for k, v in values.items()} | {"scores": scores}


def train(strategy, data, accumulation_steps=1):
    trainer = Noting(
        model=linear,
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.5),
        data=data(arrays()),
        batch_size=BATCH,
        accumulation_steps=accumulation_steps,
        strategy=strategy,
    )
    before = [np.array(v) for v in trainer.model.weights]
    values = trainer.train(5, log_every=5)
    steps = trainer.batches("train").steps_per_epoch
    return result(trainer, values) | {
        "initial0": before[0],
        "initial1": before[1],
        "steps_per_epoch": np.array(steps),
    }


def all_cases():
    """Each case's name, and the call that gives its results."""
    strategy, reducing = StaticMirrored(), ReducingMirrored()
    for name in REDUCTIONS:
        for count in (2, 3):
            call = partial(reduction, strategy, examples, count, name)
            yield f"{name}_{count}_examples", call
    name = REDUCTIONS[2]
    yield f"{name}_3_dataset", partial(reduction, strategy, dataset, 3, name)
    for data in (examples, dataset):
        yield f"train_{data.__name__}", partial(train, strategy, data)
    for count in (2, 3):
        for name in (REDUCTIONS[0], REDUCTIONS[2]):
            call = partial(masked, strategy, count, name)
            yield f"masked_{name}_{count}", call
    for case in (structures, infinite, own_step, delegated):
        yield case.__name__, partial(case, strategy)
    yield (
        "reducing_evaluation",
        partial(reduction, reducing, examples, 3, REDUCTIONS[0]),
    )
    yield "reducing_training", partial(train, reducing, examples)
    yield "in_order", partial(in_order, strategy)
    yield "reducing_in_order", partial(in_order, reducing)
    looping = LoopingMirrored()
    yield "accumulation", partial(train, strategy, examples, 2)
    yield "looping_accumulation", partial(train, looping, dataset, 2)


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * REPLICAS,
    )
    *wanted, directory = sys.argv[1:]
    results = {}
    for name, call in all_cases():
        if not wanted or name in wanted:
            for key, value in call().items():
                results[f"{name}.{key}"] = value
    np.savez(os.path.join(directory, "results.npz"), **results)


if __name__ == "__main__":
    main()
