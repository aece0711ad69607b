import json
import math
from types import SimpleNamespace

import keras
import pytest

from tests.helpers import linear, make_trainer
from trainer_plugins import EarlyStopping


def attach(callback):
    trainer = SimpleNamespace(stop_reason=None)

    def stop(reason):
        trainer.stop_reason = reason

    trainer.stop = stop
    callback.run = trainer
    return callback


def stops_at(callback, values, split="eval", name="loss"):
    """The number of the value after which training stops, or None."""
    for number, value in enumerate(values):
        callback.on_log(number, split, {name: value})
        if callback.run.stop_reason:
            return number
    return None


@pytest.mark.parametrize(
    ("monitor", "values", "expected"),
    [
        ("val_loss", [3, 2, 2.5, 2.1, 1], 3),
        ("val_loss", [3, 2, 2.5, 1.9, 1], None),
        ("val_accuracy", [0.1, 0.5, 0.4, 0.5, 0.9], 3),
        ("val_accuracy", [0.1, 0.5, 0.4, 0.6, 0.5], None),
    ],
)
def test_stops_after_patience_values_without_improvement(
    monitor, values, expected
):
    callback = attach(EarlyStopping(monitor, patience=2))
    name = monitor.removeprefix("val_")
    assert stops_at(callback, values, name=name) == expected


def test_min_delta_is_the_least_improvement_that_counts():
    values = [1.0, 0.95, 0.91]
    small = attach(EarlyStopping(patience=2, min_delta=0.01))
    large = attach(EarlyStopping(patience=2, min_delta=0.2))
    assert stops_at(small, values) is None
    assert stops_at(large, values) == 2


def test_stop_at_counts_also_below_min_delta():
    callback = attach(
        EarlyStopping("val_accuracy", stop_at=0.97, min_delta=0.05)
    )
    assert stops_at(callback, [0.9, 0.96, 0.97], name="accuracy") == 2
    assert "reached stop_at = 0.97" in callback.run.stop_reason


def test_nan_is_never_an_improvement():
    callback = attach(EarlyStopping(patience=2))
    assert stops_at(callback, [math.nan, math.nan]) == 1
    assert callback.best is None


def test_train_values_are_watched_without_the_prefix():
    callback = attach(EarlyStopping("loss", patience=1))
    assert stops_at(callback, [1, 2, 3], split="eval") is None
    assert stops_at(callback, [1, 2], split="train") == 1


def test_state_survives_json_and_goes_on_counting():
    whole = attach(EarlyStopping(patience=3))
    first = attach(EarlyStopping(patience=3))
    second = attach(EarlyStopping(patience=3))
    values = [2.0, 1.0, 1.5, 1.4, 1.3]
    expected = stops_at(whole, values)
    assert stops_at(first, values[:3]) is None
    second.load_state(json.loads(json.dumps(first.state())))
    assert second.best_step == 1
    assert stops_at(second, values[3:]) == expected - 3


def test_a_stopped_run_stays_stopped_unless_patience_grows():
    stopped = attach(EarlyStopping(patience=2))
    stops_at(stopped, [1.0, 2.0, 3.0])
    same = attach(EarlyStopping(patience=2))
    same.load_state(stopped.state())
    same.on_train_begin()
    assert same.run.stop_reason == stopped.run.stop_reason
    patient = attach(EarlyStopping(patience=3))
    patient.load_state(stopped.state())
    patient.on_train_begin()
    assert patient.run.stop_reason is None


def test_with_the_trainer():
    callback = EarlyStopping(patience=2)
    # Nothing changes, so nothing improves.
    trainer = make_trainer(linear, optimizer=keras.optimizers.SGD(0.0))
    trainer.train_and_evaluate(20, callbacks=[callback], eval_every=4)
    assert trainer.step == 12
    assert "has not improved 2 times" in trainer.stop_reason
    assert callback.best_step == 4
