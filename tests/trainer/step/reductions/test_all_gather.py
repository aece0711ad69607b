"""A loss over the global batch is that of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import ArrayExamples, Guard, Trainer, UserError, average
from trainer_experiments.contrastive import SimCLR, nt_xent

STEPS, RATE = 4, 0.5
# Batches and examples: a last batch of one leaves replicas without any.
SIZES = {"even": (6, 18), "uneven": (7, 15)}


def arrays(size):
    """Two views of each example, and its class."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(size, 1, 4))
    views = x + 0.3 * rng.normal(size=(size, 2, 4))
    return views.astype("float32"), rng.integers(0, 3, size)


def model():
    return keras.Sequential(
        [
            keras.Input((2, 4)),
            keras.layers.Dense(
                3, kernel_initializer=keras.initializers.GlorotUniform(1)
            ),
            keras.layers.UnitNormalization(),
        ]
    )


class OfKeras(Trainer):
    """Losses of Keras over pairs, and over all of a batch."""

    def global_loss(self, y, y_pred):
        return of_keras(y, y_pred)


def of_keras(y, y_pred):
    shares = keras.ops.softmax(y_pred[:, 1])
    return keras.losses.Circle(gamma=2.0)(
        y, y_pred[:, 0]
    ) + keras.losses.Dice()(keras.ops.one_hot(y, 3), shares)


class ByHand(Trainer):
    """A step of one's own that gathers by itself."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self.forward(x, training=True)
            found = self.all_gather({"y": y, "y_pred": y_pred}).values
            loss = of_keras(found["y"], found["y_pred"])
            rows = tf.cast(tf.shape(x)[0], tf.float32)
            loss = average(loss * rows, rows)
        variables = self.model.trainable_variables
        gradients = self.gradients(tape, loss, variables)
        self.apply_gradients(gradients, variables)
        return {"loss": loss}


class Numbered(Trainer):
    """Says what `all_gather` gives, for each kind of number."""

    def train_step(self, batch):
        x = batch[0][:, 0, 0]
        rows = tf.range(tf.shape(x)[0])
        kinds = {
            "float": x,
            "half": tf.cast(x, tf.float16),
            "int": rows,
            "byte": tf.cast(rows + 250, tf.uint8),
            "flag": x > 0,
        }
        whole, offset = self.all_gather(kinds)
        own = whole["float"][offset : offset + tf.shape(x)[0]]
        order = tf.range(1.0, tf.cast(tf.size(whole["float"]) + 1, tf.float32))
        found = {
            name: tf.reduce_sum(order * tf.cast(whole[name], tf.float32))
            for name in kinds
        }
        for name in kinds:
            assert whole[name].dtype == kinds[name].dtype
        return found | {"error": tf.reduce_sum(tf.abs(own - x))}


class Random(Trainer):
    """Draws in the loss: all replicas must compute the same."""

    def global_loss(self, y, y_pred):
        drop = self.model.get_layer("drop")
        return tf.reduce_sum(drop(tf.ones([64]), training=True)) + 0 * (
            tf.reduce_sum(y_pred) + tf.cast(tf.shape(y)[0], tf.float32)
        )


def with_dropout():
    return keras.Sequential([model(), keras.layers.Dropout(0.5, name="drop")])


def trainer_of(strategy, kind, *, batch, size, **options):
    return kind(
        **{
            "model": model,
            "optimizer": lambda: keras.optimizers.SGD(RATE),
            "data": lambda split: ArrayExamples(arrays(size), shuffle=False),
            "batch_size": batch,
            "strategy": strategy,
            **options,
        }
    )


def trained(strategy, kind, sizes, **options):
    batch, size = SIZES[sizes]
    trainer = trainer_of(strategy, kind, batch=batch, size=size, **options)
    logs = trainer.train(STEPS, log_every=STEPS)
    if kind is not ByHand:
        logs |= {"val_loss": trainer.evaluate()["loss"]}
    weights = trainer.model.get_weights()
    return logs | {f"weight{i}": value for i, value in enumerate(weights)}


def even(strategy):
    """With a guard, which cuts the step into phases."""
    return trained(strategy, SimCLR, "even", guard=Guard())


def uneven(strategy):
    return trained(strategy, SimCLR, "uneven")


def keras_losses(strategy):
    return trained(strategy, OfKeras, "uneven")


def by_hand(strategy):
    return trained(strategy, ByHand, "uneven")


def numbered(strategy):
    return trainer_of(strategy, Numbered, batch=5, size=5).train(1, log_every=1)


def drawn(strategy):
    trainer = trainer_of(strategy, Random, batch=5, size=5, model=with_dropout)
    return {"loss": trainer.train(1, log_every=1)["loss"]}


CASES = {
    even: ("one_device", "mirrored_2"),
    uneven: ("mirrored_2", "mirrored_3"),
    keras_losses: ("mirrored_2",),
    by_hand: ("mirrored_3",),
    numbered: ("mirrored_3", "central_storage_2"),
    drawn: ("default", "mirrored_2"),
}


LONG = (
    ("even", "one_device"),
    ("uneven", "mirrored_2"),
    ("numbered", "central_storage_2"),
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("gather")
    module = "tests.trainer.step.reductions.test_all_gather"
    return run_cases(module, request, directory, root, LONG)


def contrast(y, y_pred):
    return nt_xent(y_pred, 0.5)


def reference(loss_of, sizes):
    """The same by plain Keras on one device, batch by batch."""
    batch, size = SIZES[sizes]
    net, optimizer = model(), keras.optimizers.SGD(RATE)
    x, y = arrays(size)
    parts = [slice(i, i + batch) for i in range(0, size, batch)]
    counts = [len(y[part]) for part in parts]
    losses, weights = [], []
    for step in range(STEPS):
        part = parts[step % len(parts)]
        with tf.GradientTape() as tape:
            loss = loss_of(y[part], net(x[part]))
        variables = net.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        losses.append(float(loss))
        weights.append(counts[step % len(parts)])
    evaluated = [float(loss_of(y[part], net(x[part]))) for part in parts]
    expected = {
        f"weight{i}": value for i, value in enumerate(net.get_weights())
    }
    return expected | {
        "loss": np.average(losses, weights=weights),
        "val_loss": np.average(evaluated, weights=counts),
    }


EXPECTED = {
    "even": lambda: reference(contrast, "even"),
    "uneven": lambda: reference(contrast, "uneven"),
    "keras_losses": lambda: reference(of_keras, "uneven"),
    "by_hand": lambda: reference(of_keras, "uneven"),
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
    expected = EXPECTED[case]()
    if case == "by_hand":  # It has no eval_step.
        del expected["val_loss"]
    assert_close(found_in(results, case, strategy), expected)


@pytest.mark.parametrize("strategy", ordinary(CASES[numbered], ["mirrored_3"]))
def test_rows_come_in_the_replicas_order(results, strategy):
    found = found_in(results, "numbered", strategy)
    x = arrays(5)[0][:, 0, 0]
    order = np.arange(1, 6)
    replicas = int(strategy[-1]) if strategy[-1].isdigit() else 1
    rows = np.concatenate(
        [np.arange(len(part)) for part in np.array_split(x, replicas)]
    )
    expected = {
        "float": np.sum(order * x),
        "half": np.sum(order * x.astype("float16").astype("float64")),
        "int": np.sum(order * rows),
        "byte": np.sum(order * (rows + 250)),
        "flag": np.sum(order * (x > 0)),
        "error": 0.0,
    }
    assert_close(found, expected)


def test_replicas_draw_the_same_in_the_loss(results):
    one = found_in(results, "drawn", "default")["loss"]
    assert 0 < one < 128
    assert_close(found_in(results, "drawn", "mirrored_2"), {"loss": one})


def small(kind=SimCLR, **options):
    return trainer_of("default", kind, batch=8, size=8, **options)


def test_what_cuts_or_weighs_the_batch_is_refused():
    with pytest.raises(UserError, match="accumulation_steps = 2 would cut"):
        small(accumulation_steps=2)
    with pytest.raises(UserError, match="class_weight cannot be applied"):
        small(class_weight={0: 2.0})
    x, y = arrays(8)
    with pytest.raises(UserError, match="SimCLR.global_loss does not get"):
        small(data=lambda split: (x, y, np.ones(8, "float32"))).train(1)


def test_a_global_loss_that_is_no_scalar_is_refused():
    class Rows(Trainer):
        def global_loss(self, y, y_pred):
            return y_pred

    with pytest.raises(UserError, match=r"Rows.global_loss .* a scalar"):
        small(Rows).train(1)


@pytest.mark.parametrize("part", [tf.constant(1.0), tf.constant(["a"])])
def test_what_cannot_be_gathered_is_refused(part):
    with pytest.raises(UserError, match=r"shape \[rows, ...\]"):
        small().all_gather(part)


def test_it_is_added_to_losses_by_example():
    class Both(Trainer):
        def global_loss(self, y, y_pred):
            return tf.reduce_sum(y_pred) * 0 + 3.0

    zero = keras.losses.MeanSquaredError()
    x, y = arrays(8)
    trainer = small(Both, loss=zero, data=lambda split: (x, x[..., :3]))
    error = np.mean((trainer.model(x) - x[..., :3]) ** 2)
    assert trainer.evaluate()["loss"] == pytest.approx(error + 3, rel=1e-5)
