"""What a worker runs under one strategy; each case returns arrays."""

import os

import gin
import keras
import numpy as np
import tensorflow as tf

from trainer import ArrayExamples, Callback, Trainer, UserError, average
from trainer.plugin_api import storage
from trainer_experiments.contrastive import SimCLR
from trainer_experiments.digits import digits
from trainer_experiments.models import conv_net
from trainer_plugins import Checkpoint

from . import models
from .divergence import divergence, divergence_unordered

UNITS = 24
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def in_order(arrays):
    return lambda split: ArrayExamples(arrays, shuffle=False)


class Recorder(Callback):
    """Keeps every log, and the order of all events."""

    def __init__(self):
        super().__init__()
        self.train, self.events = [], []

    def on_log(self, step, split, logs):
        self.events.append(f"log {split} {step}")
        if split == "train":
            self.train.append(logs["loss"])


for _event in (
    "setup",
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_epoch_end",
    "on_save",
    "on_train_end",
    "close",
):

    def _record(self, *arguments, event=_event):
        first = arguments[0] if arguments else ""
        number = first if isinstance(first, int) else ""
        self.events.append(f"{event} {number}".strip())

    setattr(Recorder, _event, _record)


def made(strategy, arrays, kind=Trainer, **options):
    """A Trainer on arrays in their order."""
    given = {"batch_size": models.BATCH, **options}
    return kind(data=in_order(arrays), strategy=strategy, **given)


def regression_trainer(strategy, arrays=None, **options):
    defaults = {
        "model": models.regression_model,
        "loss": keras.losses.MeanSquaredError(),
        "optimizer": lambda: keras.optimizers.Adam(
            models.LEARNING_RATE, global_clipnorm=models.CLIP_NORM
        ),
        "metrics": [keras.metrics.MeanAbsoluteError],
    }
    arrays = arrays or models.regression_data()
    return made(strategy, arrays, **{**defaults, **options})


def linear():
    return keras.Sequential(
        [keras.Input((models.FEATURES,)), keras.layers.Dense(1)]
    )


def weights_of(trainer):
    return {
        f"variable{i}": np.array(v)
        for i, v in enumerate(trainer.model.variables)
    }


def initial_of(trainer):
    return {f"initial_{k}": v for k, v in weights_of(trainer).items()}


@case
def parity(strategy, directory):
    """50 steps with everything that could depend on the replica count."""
    trainer = regression_trainer(strategy, accumulation_steps=models.MICRO)
    result = initial_of(trainer)
    recorder = Recorder()
    logs = trainer.train_and_evaluate(
        50, steps_per_loop=1, log_every=1, callbacks=[recorder], eval_every=50
    )
    assert trainer.train(50) == logs, "a finished run must not train on"
    result |= weights_of(trainer)
    result["losses"] = np.array(recorder.train)
    result["eval"] = np.array(
        [logs["val_loss"], logs["val_mean_absolute_error"]]
    )
    return result


class Decaying(keras.Metric):
    """Halves what came before: it depends on the order of the batches."""

    def __init__(self):
        super().__init__(name="decaying")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, y_pred, sample_weight=None):
        error = keras.ops.sum(keras.ops.abs(y - y_pred)[:, 0] * sample_weight)
        self.total.assign(0.5 * self.total + error)

    def result(self):
        return self.total


@case
def metrics_in_order(strategy, directory):
    """A metric that does not add up is that of whole batches, in order.

    In training, a batch that is cut refuses it.
    """
    trainer = regression_trainer(
        strategy,
        model=linear,
        metrics=[Decaying],
        accumulation_steps=models.MICRO,
        optimizer=lambda: keras.optimizers.SGD(0.0),
    )
    result = {}
    try:
        trainer.train(1)
    except UserError as error:
        result["refused"] = np.array(str(error))
    try:
        result["eval"] = np.array(trainer.evaluate()["decaying"])
    except UserError as error:
        result["not_evaluated"] = np.array(str(error))
        return result
    x, _, _ = models.regression_data()
    predicted = trainer._built.single_device_model()(x)
    return result | {"predicted": np.array(predicted)}


@case
def moving_average(strategy, directory):
    """Averaged weights, used by evaluation and gone afterwards.

    And a metric of all examples of 20 steps, whatever the graph calls; and a
    checkpoint for other strategies, with what it evaluates to.
    """
    trainer = regression_trainer(
        strategy, ema_momentum=0.9, accumulation_steps=models.MICRO
    )
    result = initial_of(trainer)
    logs = trainer.train_and_evaluate(
        20,
        eval_every=20,
        steps_per_loop=7,
        log_every=20,
        model_dir=os.path.join(directory, "saved"),
        callbacks=[Checkpoint()],
    )
    result["error"] = np.array(logs["mean_absolute_error"])
    result |= weights_of(trainer)
    for i, value in enumerate(trainer._built.parts.ema.variables):
        result[f"average{i}"] = np.array(value)
    result["eval_loss"] = np.array(logs["val_loss"])
    saved = _state_of(trainer) | {"eval": result["eval_loss"]}
    return result | {f"saved_{key}": value for key, value in saved.items()}


@case
def masked_loss(strategy, directory):
    """A mask's denominator is the global number of values that count."""
    trainer = made(
        strategy,
        models.token_data(),
        model=models.token_model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )
    result = initial_of(trainer)
    logs = trainer.train(12, log_every=12)
    return result | weights_of(trainer) | {"loss": np.array(logs["loss"])}


@case
def weighted_denominator(strategy, directory):
    """`mean_with_sample_weight` divides by the global sum of weights."""
    trainer = made(
        strategy,
        models.binary_data(),
        model=models.binary_model,
        loss=keras.losses.BinaryCrossentropy(
            reduction="mean_with_sample_weight"
        ),
        optimizer=lambda: keras.optimizers.SGD(0.5),
        metrics=[
            lambda: keras.metrics.AUC(num_thresholds=1000),
            keras.metrics.BinaryAccuracy,
        ],
    )
    result = initial_of(trainer)
    trainer.train(1)
    result |= weights_of(trainer)
    logs = trainer.evaluate()
    for name in ("auc", "binary_accuracy", "loss"):
        result[name] = np.array(logs[name])
    return result


@case
def half_precision(strategy, directory):
    """Float16 with a loss scale: learns, and skips what overflows."""
    trainer = regression_trainer(strategy, precision="mixed_float16")
    first = trainer.evaluate()["loss"]
    trainer._built.parts.loss_scale.variables[0].assign(2.0**60)
    trainer.train(1)
    skipped = np.array(trainer.optimizer.iterations)
    trainer._built.parts.loss_scale.variables[0].assign(2.0**10)
    trainer.train(60)
    return {
        "first": np.array(first),
        "last": np.array(trainer.evaluate()["loss"]),
        "iterations_after_overflow": skipped,
        "iterations": np.array(trainer.optimizer.iterations),
        "dtype": np.array(trainer.model.layers[0].compute_dtype),
        "finite": np.array(
            all(np.isfinite(v).all() for v in weights_of(trainer).values())
        ),
    }


@case
def dropout(strategy, directory):
    """Each replica drops other units, and the same ones in each run."""

    class Masks(Trainer):
        def train_step(self, batch):
            kept = self.model.layers[1](tf.ones([1, UNITS]), training=True) > 0
            # One bit a unit: a whole number that float32 holds exactly.
            bits = 2.0 ** tf.range(UNITS, dtype=tf.float32)
            word = tf.reduce_sum(tf.where(kept[0], bits, 0.0))
            replica = tf.distribute.get_replica_context()
            number = replica.replica_id_in_sync_group
            return {
                f"replica{i}": average(
                    tf.where(tf.equal(i, number), word, 0.0),
                    1.0 / self.plugin.num_replicas,
                )
                for i in range(self.plugin.num_replicas)
            }

    def masks(seed, steps):
        trainer = made(
            strategy,
            models.regression_data(),
            Masks,
            model=models.dropout_model,
            seed=seed,
        )
        logs = [trainer.train(n, log_every=1) for n in steps]
        words = [
            [
                int(log[f"replica{i}"])
                for i in range(trainer.plugin.num_replicas)
            ]
            for log in logs
        ]
        return np.array(words)[:, :, None] >> np.arange(UNITS) & 1

    first, second = masks(1, [1, 2])
    (again,) = masks(1, [1])
    (other,) = masks(2, [1])
    return {"first": first, "second": second, "again": again, "other": other}


@case
def own_train_step(strategy, directory):
    """Two optimizers, applied by a train_step of one's own."""

    class Two(Trainer):
        def train_step(self, batch):
            x, y, _ = batch
            with tf.GradientTape() as tape:
                error = self.model(x, training=True) - y
                loss = average(
                    tf.reduce_sum(error**2), tf.cast(tf.shape(x)[0], tf.float32)
                )
            variables = self.model.trainable_variables
            found = self.gradients(tape, loss, variables)
            self.apply_gradients(found[:2], variables[:2], optimizer="slow")
            self.apply_gradients(found[2:], variables[2:], optimizer="fast")
            return {"loss": loss}

    trainer = made(
        strategy,
        models.regression_data(),
        Two,
        model=models.dropout_model,
        optimizer={
            "slow": lambda: keras.optimizers.SGD(0.001),
            "fast": lambda: keras.optimizers.SGD(0.01),
        },
    )
    trainer.model.layers[1].rate = 0.0
    result = initial_of(trainer)
    logs = trainer.train(1, log_every=1)
    return result | weights_of(trainer) | {"loss": np.array(logs["loss"])}


@case
def loss_over_the_global_batch(strategy, directory):
    """Pairs of views, on pieces of unequal size, some with no example."""
    trainer = made(
        strategy,
        models.views_data(),
        SimCLR,
        model=models.views_model,
        optimizer=lambda: keras.optimizers.SGD(models.VIEWS_RATE),
        batch_size=models.VIEWS_BATCH,
    )
    result = initial_of(trainer)
    logs = trainer.train_and_evaluate(
        models.VIEWS_STEPS, log_every=models.VIEWS_STEPS
    )
    losses = {name: np.array(logs[name]) for name in ("loss", "val_loss")}
    return result | weights_of(trainer) | losses


@case
def resume(strategy, directory):
    """20 steps at once equal 11 and then 9 from the checkpoint, in bytes."""

    def train(name, *ends):
        path = os.path.join(directory, f"resume_{name}")
        for end in ends:
            trainer = Trainer(
                model=models.dropout_model,
                loss="mse",
                metrics=[keras.metrics.MeanAbsoluteError],
                data=lambda split: models.regression_data(),
                batch_size=models.BATCH,
                strategy=strategy,
            )
            trainer.train(
                end,
                model_dir=path,
                steps_per_loop=3,
                log_every=6,
                callbacks=[Checkpoint(every=4)],
            )
        return storage.load_newest(os.path.join(path, "checkpoints"))

    whole, parts = train("whole", 20), train("parts", 11, 20)
    assert whole.arrays.keys() == parts.arrays.keys()
    return {
        f"{side}_{name}": np.asarray(value)
        for side, snapshot in (("whole", whole), ("parts", parts))
        for name, value in snapshot.arrays.items()
    } | {"logs_equal": np.array(whole.host["logs"] == parts.host["logs"])}


def _state_of(trainer):
    """Every variable of a run: model, optimizer, averages, step."""
    arrays = trainer._built.state.capture().arrays
    return {
        name: np.asarray(value)
        for name, value in arrays.items()
        if not name.startswith("totals/")
    }


def restore_saved(strategy, sources):
    """Restores what `moving_average` saved in other runs."""
    results = {}
    for i, source in enumerate(sources):
        trainer = regression_trainer(strategy, ema_momentum=0.9, seed=i + 1)
        trainer.build()
        assert trainer._built.state.restore_newest(
            os.path.join(source, "saved", "checkpoints")
        )
        found = _state_of(trainer)
        found["eval"] = np.array(trainer.evaluate()["loss"])
        results |= {f"restored{i}.{k}": v for k, v in found.items()}
    return results


@case
def callback_order(strategy, directory):
    """Events come in the documented order."""
    recorder, last = Recorder(), Recorder()
    last.runs_last = True
    last.events = recorder.events = []
    regression_trainer(
        strategy, model=linear, optimizer="sgd", metrics=[]
    ).train_and_evaluate(
        7,
        steps_per_loop=3,
        log_every=3,
        eval_every="1 epoch",
        callbacks=[last, recorder],
    )
    return {"events": np.array(recorder.events)}


def counts(strategy, directory):
    """What was counted in 400 steps of workers that do not wait."""
    x, y, _ = models.regression_data()
    whole = len(x) // models.BATCH * models.BATCH
    trainer = regression_trainer(strategy, (x[:whole], y[:whole]))
    logs = trainer.train(400, log_every=1000, steps_per_loop=100)
    totals = trainer._built.last._reporter.intervals["interval"]
    metric_count = totals.state()["metric:mean_absolute_error"][1].sum()
    return {
        "counts.steps": np.array(trainer._built.parts.step),
        "counts.iterations": np.array(trainer.optimizer.iterations),
        "counts.examples": np.array(totals.examples),
        "counts.metric_count": np.array(metric_count),
        "counts.staleness": np.array(logs.get("staleness", 0.0)),
        "counts.loss": np.array(logs["loss"]),
    }


def digits_accuracy(strategy, directory):
    """The test accuracy of the digits experiment, weights averaged."""
    trainer = Trainer(
        model=lambda: conv_net(input_shape=(8, 8, 1)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=lambda: keras.optimizers.Adam(0.001),
        metrics=[keras.metrics.SparseCategoricalAccuracy],
        data=digits,
        batch_size=64,
        ema_momentum=0.99,
        strategy=strategy,
    )
    logs = trainer.train_and_evaluate(2000, eval_every=2000)
    return {
        "digits.accuracy": np.array(logs["val_sparse_categorical_accuracy"])
    }


EXTRA = {
    "counts": counts,
    "digits": digits_accuracy,
    "divergence": divergence,
    "divergence_unordered": divergence_unordered,
}


def run_all(strategy, directory, only=None):
    """Runs the cases, each with a fresh trainer under one strategy."""
    results = {}
    for name, function in CASES.items():
        if only and name not in only:
            continue
        gin.clear_config()
        keras.backend.clear_session(free_memory=False)
        for key, value in function(strategy, directory).items():
            results[f"{name}.{key}"] = value
    return results
