"""Pieces with few examples count as few, and without one for nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import ArrayExamples, Guard, Trainer, UserError, average

SIZE, BATCH, STEPS, RATE = 33, 16, 7, 0.1


def arrays():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(SIZE, 3)).astype("float32") + 1.0
    return x, x.sum(1, keepdims=True)


class Keeping(keras.layers.Layer):
    """Keeps means of its input in three ways, and adds a loss."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(3,), initializer="ones")
        self.kept = self.add_weight(shape=(3,), trainable=False)
        self.kept.assign(tf.zeros(3))
        self.plain = tf.Variable(tf.zeros(3), trainable=False)
        self.wide = self.add_weight(
            shape=(3,), dtype="float64", trainable=False, initializer="zeros"
        )
        self.rows = self.add_weight(
            shape=(), trainable=False, initializer="zeros", aggregation="sum"
        )
        self.calls = self.add_weight(
            shape=(), dtype="int32", trainable=False, initializer="zeros"
        )

    def call(self, x):
        mean = tf.reduce_mean(x, 0)
        self.kept.assign(0.5 * self.kept + 0.5 * mean)
        self.plain.assign_add(0.25 * (mean - self.plain))
        self.wide.assign_sub(0.5 * (self.wide - tf.cast(mean, tf.float64)))
        self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        self.calls.assign_add(1)
        # Of no example its value and its gradient are no numbers.
        self.add_loss(tf.reduce_mean((x * self.scale) ** 2))
        return x * self.scale


def kept(layer):
    names = ("scale", "kept", "plain", "wide", "rows", "calls")
    return {
        name: tf.convert_to_tensor(getattr(layer, name)).numpy()
        for name in names
    }


def model():
    return keras.Sequential(
        [
            keras.Input((3,)),
            Keeping(name="keeping"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def trainer_of(strategy, *, kind=Trainer, **options):
    options = {
        "model": model,
        "loss": "mse",
        "optimizer": lambda: keras.optimizers.SGD(RATE / 10),
        "data": lambda split: ArrayExamples(arrays(), shuffle=False),
        "batch_size": BATCH,
        **options,
    }
    return kind(strategy=strategy, **options)


def result(trainer, logs):
    layer = trainer.model.get_layer("keeping")
    return kept(layer) | {"loss": logs["loss"]}


def means(strategy):
    trainer = trainer_of(strategy)
    return result(trainer, trainer.train(STEPS, log_every=STEPS))


def guarded(strategy):
    """The same where the guard splits the step into phases."""
    trainer = trainer_of(strategy, guard=Guard())
    return result(trainer, trainer.train(STEPS, log_every=STEPS))


def micro_batches(strategy):
    """The epoch's last batch of one example leaves a micro-batch empty."""
    trainer = trainer_of(strategy, accumulation_steps=2)
    return result(trainer, trainer.train(STEPS, log_every=STEPS))


def own_step(strategy):
    """A step of one's own that does not think of empty pieces."""

    class Own(Trainer):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(
                    (self.forward(x, training=True) - y) ** 2
                )
                rows = tf.cast(tf.shape(x)[0], tf.float32)
                loss = average(error * rows, rows)
            variables = self.model.trainable_variables
            found = self.gradients(tape, loss, variables)
            self.apply_gradients(found, variables)
            return {"loss": loss, "plain": tf.reduce_mean(y) * 0 + 3.0}

    trainer = trainer_of(strategy, kind=Own)
    logs = trainer.train(STEPS, log_every=STEPS)
    return result(trainer, logs) | {"plain": logs["plain"]}


def evaluation(strategy):
    trainer = trainer_of(strategy)
    return {"loss": trainer.evaluate()["loss"]}


def unsynchronized(strategy):
    """Each replica has its own statistics, and keeps their mean."""

    def normed():
        return keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.BatchNormalization(momentum=0.5, name="norm"),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )

    trainer = trainer_of(strategy, model=normed, sync_batch_norm=False)
    logs = trainer.train(STEPS, log_every=STEPS)
    norm = trainer.model.get_layer("norm")
    weights = np.concatenate([np.ravel(w) for w in trainer.model.get_weights()])
    return {
        "mean": norm.moving_mean.numpy(),
        "variance": norm.moving_variance.numpy(),
        "finite": np.isfinite([*weights, logs["loss"]]).all(),
    }


class Summing(keras.layers.Layer):
    """Adds a sum over the batch, and may count examples."""

    def __init__(self, counts=None, **options):
        super().__init__(**options)
        self.counts = counts

    def build(self, shape):
        self.scale = self.add_weight(shape=(3,), initializer="ones")
        if self.counts is not None:
            self.count = self.add_weight(
                shape=(), initializer="zeros", trainable=False, **self.counts
            )

    def call(self, x):
        if self.counts is not None:
            self.count.assign_add(tf.cast(tf.shape(x)[0], self.count.dtype))
        self.add_loss(0.01 * tf.reduce_sum((x * self.scale) ** 2))
        return x * self.scale


def summing_model(**options):
    return keras.Sequential(
        [
            keras.Input((3,)),
            Summing(name="summing", **options),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def sums(strategy):
    trainer = trainer_of(
        strategy, model=summing_model, added_losses={"summing": "sum"}
    )
    logs = trainer.train(STEPS, log_every=STEPS)
    return {
        "loss": logs["loss"],
        "scale": trainer.model.get_layer("summing").scale.numpy(),
    }


def refused(strategy):
    """What a model is told that keeps or adds sums."""

    def sentence(counts, **options):
        trainer = trainer_of(
            strategy, model=lambda: summing_model(counts=counts), **options
        )
        try:
            trainer.train(1)
        except UserError as error:
            return str(error)
        return ""

    said = {"added_losses": "sum"}
    return {
        "added": sentence(None),
        "float": sentence({}, **said),
        "int": sentence({"dtype": "int32"}, **said),
        "decided": sentence({"aggregation": "sum"}, **said),
    }


def tokens():
    """Padded sequences; the last example of all, alone, is mostly padding."""
    rng = np.random.default_rng(6)
    x = rng.integers(1, 7, (SIZE, 5))
    lengths = rng.integers(1, 6, SIZE)
    x[np.arange(5) >= lengths[:, None]] = 0
    return x.astype("int32"), rng.normal(size=(SIZE, 5, 1)).astype("float32")


def masked_norm_model():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(
                7,
                3,
                mask_zero=True,
                embeddings_initializer=keras.initializers.RandomNormal(seed=2),
            ),
            keras.layers.BatchNormalization(momentum=0.5, name="norm"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def masked_norm(strategy):
    return normed(
        strategy,
        model=masked_norm_model,
        data=lambda split: ArrayExamples(tokens(), shuffle=False),
    )


def far_norm(strategy):
    """The squares of what is normalized differ in their last digits only."""

    def far_model():
        far = keras.layers.Rescaling(1.0, offset=1000.0)
        norm = keras.layers.BatchNormalization(momentum=0.5, name="norm")
        return keras.Sequential(
            [keras.Input((3,)), far, norm, keras.layers.Dense(1)]
        )

    trainer = trainer_of(strategy, model=far_model)
    trainer.train(STEPS)
    norm = trainer.model.get_layer("norm")
    return {"variance": norm.moving_variance.numpy()}


def normed(strategy, **options):
    trainer = trainer_of(strategy, **options)
    logs = trainer.train(STEPS, log_every=1)
    weights = trainer.model.get_weights()
    return {"loss": logs["loss"]} | {
        f"weight{i}": value for i, value in enumerate(weights)
    }


CASES = {
    means: ("default", "mirrored_2", "mirrored_3", "central_storage_2"),
    guarded: ("mirrored_2",),
    micro_batches: ("default", "mirrored_2"),
    own_step: ("mirrored_2",),
    evaluation: ("mirrored_3",),
    unsynchronized: ("mirrored_2", "mirrored_3"),
    masked_norm: ("mirrored_2", "central_storage_2"),
    far_norm: ("mirrored_2",),
    sums: ("mirrored_3",),
    refused: ("mirrored_2",),
}


# Of each case the ordinary set has one strategy, with the most replicas that
# can tell a mistake.
LONG = (
    ("means", "default"),
    ("means", "mirrored_2"),
    ("means", "central_storage_2"),
    ("guarded", "mirrored_2"),
    ("micro_batches", "default"),
    ("unsynchronized", "mirrored_3"),
    ("masked_norm", "central_storage_2"),
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("uneven")
    module = "tests.trainer.step.reductions.test_uneven"
    return run_cases(module, request, directory, root, LONG)


def batches(arrays=arrays):
    x, y = arrays()
    for step in range(STEPS):
        begin = step % 3 * BATCH
        yield x[begin : begin + BATCH], y[begin : begin + BATCH]


def reference(*, micro=1, added=True):
    """The same by plain Keras on one device, batch by batch."""
    net = model()
    optimizer = keras.optimizers.SGD(RATE / 10)
    total, count = 0.0, 0
    variables = net.trainable_variables
    for x, y in batches():
        gradients = [0.0] * len(variables)
        for part in np.array_split(np.arange(len(x)), micro):
            if not len(part):
                continue
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    (net(x[part], training=True) - y[part]) ** 2
                )
                if added:
                    loss += tf.add_n(net.losses)
                loss *= len(part) / len(x)
            found = tape.gradient(loss, variables)
            gradients = [a + b for a, b in zip(gradients, found, strict=True)]
            total += float(loss) * len(x)
        count += len(x)
        optimizer.apply(gradients, variables)
    expected = kept(net.get_layer("keeping"))
    return expected | {"loss": total / count}


def own_statistics(replicas):
    """The moving statistics of replicas that each have their own."""
    mean, variance = np.zeros(3), np.ones(3)
    for x, _ in batches():
        parts = [p for p in np.array_split(x, replicas) if len(p)]
        mean = 0.5 * mean + 0.5 * x.mean(0)
        within = sum(len(p) / len(x) * p.var(0) for p in parts)
        variance = 0.5 * variance + 0.5 * within
    return {"mean": mean, "variance": variance, "finite": True}


def variance_far_away():
    variance = np.ones(3)
    for x, _ in batches():
        variance = 0.5 * variance + 0.5 * (x + np.float32(1000)).var(0)
    return {"variance": variance}


def evaluated():
    x, y = arrays()
    error = np.sum((x.sum(1, keepdims=True) - y) ** 2, 1)
    return {"loss": np.mean(error) + np.mean(x**2)}


def added_sums():
    model = summing_model()
    optimizer = keras.optimizers.SGD(RATE / 10)
    total, count, sums = 0.0, 0, []
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) + tf.add_n(model.losses)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        # A sum is logged as the mean of the steps' sums.
        error = loss - model.losses[0]
        total, count = total + float(error) * len(x), count + len(x)
        sums.append(float(model.losses[0]))
    return {
        "loss": total / count + np.mean(sums),
        "scale": model.get_layer("summing").scale.numpy(),
    }


def fitted_behind_a_mask():
    model = masked_norm_model()
    model.compile(keras.optimizers.SGD(RATE / 10), "mse")
    for x, y in batches(tokens):
        model.reset_metrics()
        loss = model.train_on_batch(x, y)
    weights = model.get_weights()
    return {"loss": float(loss)} | {
        f"weight{i}": value for i, value in enumerate(weights)
    }


EXPECTED = {
    "masked_norm": lambda replicas: fitted_behind_a_mask(),
    "far_norm": lambda replicas: variance_far_away(),
    "sums": lambda replicas: added_sums(),
    "means": lambda replicas: reference(),
    "guarded": lambda replicas: reference(),
    "micro_batches": lambda replicas: reference(micro=2),
    "own_step": lambda replicas: reference(added=False) | {"plain": 3.0},
    "evaluation": lambda replicas: evaluated(),
    "unsynchronized": own_statistics,
}


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        pair
        for pair in pairs(CASES, LONG)
        if getattr(pair, "values", pair)[0] in EXPECTED
    ],
)
def test_equals_one_device(results, case, strategy):
    replicas = int(strategy[-1]) if strategy[-1].isdigit() else 1
    found = found_in(results, case, strategy)
    assert_close(found, EXPECTED[case](replicas))


def test_sums_that_nobody_decided_on_are_refused(results):
    found = found_in(results, "refused", "mirrored_2")
    assert "'summing' passes a value to add_loss that is" in str(found["added"])
    assert "Trainer.added_losses = {'summing': 'sum'}" in str(found["added"])
    assert "keeps a value that is no mean over the batch" in str(found["int"])
    assert "aggregation='sum'" in str(found["int"])
    # The trial tells what adds to a floating-point number from a mean.
    assert not str(found["float"])
    assert not str(found["decided"])
