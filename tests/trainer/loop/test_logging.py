"""`trainer.log`: from callbacks and steps, to loggers, `train` and history."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import ARRAYS, linear, make_trainer, read_lines, run_worker
from tests.sets import long, ordinary
from tests.trainer.loop.logging_worker import OfStep
from trainer import Callback, Logger, Trainer, UserError, WholeSetMetric
from trainer_plugins import CSV, JsonLines

KINDS = frozenset({"scalar", "image", "histogram", "text", "audio"})


class Recorder(Logger):
    """Keeps what it is given, as a service would that can take rows back."""

    takes = KINDS

    def __init__(self):
        super().__init__()
        self.entries = []

    def write(self, entries):
        self.entries += entries

    def take_back(self, step, *, final):
        self.entries = [
            one
            for one in self.entries
            if one.step <= step and not (final and one.final)
        ]

    def under(self, name):
        return [
            (one.step, one.split, one.values[name])
            for one in self.entries
            if name in one.values
        ]


class Everywhere(Callback):
    """Logs in each event a number of its own."""

    def _log(self, event):
        self.run.log(event, self.run.step)

    def on_train_begin(self, logs=None):
        self._log("train_begin")

    def on_epoch_begin(self, epoch, logs=None):
        self._log("epoch_begin")

    def on_train_batch_end(self, batch, logs=None):
        self._log("batch_end")

    def on_test_begin(self, logs=None):
        self._log("test_begin")

    def on_test_end(self, logs=None):
        logs["added"] = np.float32(0.5)
        self._log("test_end")

    def on_epoch_end(self, epoch, logs=None):
        self._log("epoch_end")

    def on_train_end(self, logs=None):
        self._log("train_end")


def test_numbers_of_every_event_go_to_loggers_and_are_returned(tmp_path):
    recorder = Recorder()
    trainer = make_trainer(linear)
    values = trainer.train_and_evaluate(
        16,
        model_dir=str(tmp_path),
        callbacks=[recorder, Everywhere(), JsonLines(), CSV()],
        log_every=8,
        verbose=0,
    )
    both = [8, 16]
    for name, split, steps in (
        ("train_begin", "train", [0]),
        ("epoch_begin", "train", [0, 8]),
        ("batch_end", "train", both),
        ("test_begin", "eval", both),
        ("test_end", "eval", both),
        ("epoch_end", "train", both),
        ("train_end", "train", [16]),
    ):
        expected = [(step, split, float(step)) for step in steps]
        assert recorder.under(name) == expected, name
        key = name if split == "train" else f"val_{name}"
        assert values[key] == steps[-1]
    assert values["val_added"] == 0.5
    assert trainer.history.history["val_added"] == [0.5, 0.5]
    assert trainer.history.history["epoch_end"] == both
    assert trainer.history.history["val_test_end"] == both
    assert recorder.under("added") == [(8, "eval", 0.5), (16, "eval", 0.5)]
    # The log that is due holds what came before it.
    lines = read_lines(tmp_path / "metrics.jsonl")
    due = [one for one in lines if "loss" in one and one["split"] == "train"]
    assert [one["batch_end"] for one in due] == both
    assert "batch_end" in (tmp_path / "metrics.csv").read_text()


def test_a_step_logs_means_over_all_examples():
    trainer = make_trainer(
        linear, kind=OfStep, optimizer=keras.optimizers.SGD(0.0)
    )
    values = trainer.train_and_evaluate(8, verbose=0)
    x, y = ARRAYS
    error = np.abs(y - trainer.predict(x))
    for prefix in ("", "val_"):
        assert values[f"{prefix}error"] == pytest.approx(error.mean(), rel=1e-5)
        assert values[f"{prefix}ratio"] == pytest.approx(
            y.sum() / (y * y).sum(), rel=1e-4
        )
    assert trainer.history.history["error"] == [values["error"]]


def logging_step(*arguments, **options):
    class Own(Trainer):
        def per_example_loss(self, x, y, y_pred):
            made = [one(y_pred) if callable(one) else one for one in arguments]
            self.log(*made, **options)
            return tf.square(y - y_pred)

    return Own


STEP_MISTAKES = [
    (("a", tf.reduce_sum), {}, r"of shape \(\), and each replica has"),
    (("a", lambda y: y), {}, r"of shape \(8, 1\)"),
    (("loss", lambda y: y[:, 0]), {}, "has the name of a value"),
    (("_a", lambda y: y[:, 0]), {}, "got the name '_a'"),
    (("a", lambda y: y[1:, 0]), {}, r"of shape \(7,\)"),
    (("a", lambda y: y[:, 0]), {"kind": "histogram"}, "kind = 'histogram'"),
    (("a", "text"), {}, "got a string"),
]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    ordinary(STEP_MISTAKES, STEP_MISTAKES[:1]),
)
def test_what_a_step_cannot_log_is_refused(arguments, options, message):
    trainer = make_trainer(linear, kind=logging_step(*arguments, **options))
    with pytest.raises(UserError, match=message):
        trainer.train(8, verbose=0)
    assert trainer.step == 0


@pytest.mark.parametrize(
    "name", ["a\nb", "=1+1", "a\x07", "step", *map(long, ("split", "", "é"))]
)
def test_names_are_those_of_log_whoever_gives_them(name, tmp_path):
    class Named(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            logs[name] = 1.0

    def train(metrics=(), callbacks=()):
        made = make_trainer(linear, metrics=[*metrics])
        made.train_and_evaluate(
            8, model_dir=tmp_path, callbacks=[*callbacks, CSV()], verbose=0
        )

    with pytest.raises(UserError, match="Valid: letters, digits, spaces"):
        train(callbacks=[Named()])
    if name:  # Keras takes none for the name of its class.
        metric = keras.metrics.MeanSquaredError(name=name)
        with pytest.raises(UserError, match="Valid: letters, digits, spaces"):
            train(metrics=[metric])
        with pytest.raises(UserError, match="Valid: letters, digits, spaces"):
            make_trainer(linear, metrics=[metric]).evaluate()


@pytest.mark.long
def test_outside_of_a_run_is_refused():
    trainer = make_trainer(linear)
    with pytest.raises(UserError, match="outside of a run"):
        trainer.log("a", 1.0)
    trainer.train(8, verbose=0)
    with pytest.raises(UserError, match="outside of a run"):
        trainer.log("a", 1.0)


@pytest.mark.long
def test_a_name_that_is_measured_is_refused():
    for split in ("train", "eval"):
        with pytest.raises(UserError, match="measures itself"):
            make_trainer(linear).train_and_evaluate(
                8,
                callbacks=[
                    keras.callbacks.LambdaCallback(),
                    _OnTestEnd("loss", split),
                ],
                verbose=0,
            )


class _OnTestEnd(Callback):
    def __init__(self, name, split):
        super().__init__()
        self._name, self._split = name, split

    def on_test_end(self, logs=None):
        self.run.log(self._name, 1.0, split=self._split)


@pytest.mark.long
def test_a_step_logs_the_same_under_every_strategy(tmp_path, root):
    """Pieces are uneven, and cut into micro-batches; against NumPy."""
    worker = "tests.trainer.loop.logging_worker"
    found = run_worker(worker, "mirrored", directory=tmp_path, root=root)
    one = run_worker(worker, "default", directory=tmp_path, root=root)
    assert found.keys() == one.keys() >= {"error", "val_error"}
    for name in one:
        np.testing.assert_allclose(found[name], one[name], rtol=1e-5)


class Values(keras.callbacks.Callback):
    """Keeps what it is told at the end of each batch of an evaluation."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_test_batch_end(self, batch, logs=None):
        self.told.append(dict(logs))


def largest(y, y_pred):
    assert len(y) == len(ARRAYS[0]), "it is for the whole set"
    return float(np.max(y))


@pytest.mark.long
def test_what_is_over_a_whole_set_is_not_computed_at_each_batch():
    told = Values()
    trainer = make_trainer(linear, metrics=["mae", WholeSetMetric(largest)])
    values = trainer.train_and_evaluate(1, callbacks=[told], verbose=0)
    assert [set(one) for one in told.told] == [{"loss", "mae"}] * 8
    assert told.told[-1]["mae"] == values["val_mae"]
    assert values["val_largest"] == np.max(ARRAYS[1])
