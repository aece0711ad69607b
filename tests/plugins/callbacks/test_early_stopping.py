"""`EarlyStopping` in runs whose values are set: by a metric of their own."""

import math

import pytest

from tests.helpers import linear, make_trainer
from trainer import UserError, WholeSetMetric
from trainer_plugins import Checkpoint, EarlyStopping


def run(values, *, steps=None, model_dir=None, **options):
    """Evaluates after each step, to the values in turn; the trainer."""
    left = iter(values)
    callback = EarlyStopping("val_given", **options)
    trainer = make_trainer(
        linear, metrics=[WholeSetMetric(lambda y, p: next(left), name="given")]
    )
    trainer.train_and_evaluate(
        steps or len(values),
        model_dir=model_dir,
        callbacks=[callback, *([Checkpoint()] if model_dir else [])],
        eval_every=1,
        verbose=0,
    )
    return trainer


@pytest.mark.parametrize(
    ("values", "options", "end"),
    [
        ([3, 2, 2.5, 2.1, 1], {"mode": "min"}, 4),
        ([3, 2, 2.5, 1.9, 1], {"mode": "min"}, 5),
        ([0.1, 0.5, 0.4, 0.5, 0.9], {"mode": "max"}, 4),
        ([1.0, 0.95, 0.91, 0.9], {"mode": "min", "min_delta": 0.2}, 3),
        ([math.nan, math.nan, 1], {"mode": "min"}, 2),
    ],
)
def test_when_it_stops(values, options, end):
    assert run(values, patience=2, **options).step == end


def test_its_state_goes_on_counting_and_stays_unless_patience_grows(tmp_path):
    values, options = [2, 1, 1.5, 1.4, 1.3, 1.2], {"mode": "min"}
    where = str(tmp_path)
    first = run(values[:3], model_dir=where, patience=3, **options)
    assert first.step == 3
    second = run(values[3:], steps=9, model_dir=where, patience=3, **options)
    assert second.step == 5
    again = run([], steps=9, model_dir=where, patience=3, **options)
    assert (again.step, again.stop_reason) == (5, second.stop_reason)
    more = run(values[5:], steps=10, model_dir=where, patience=4, **options)
    assert more.step == 6


def test_an_unknown_monitor_is_refused():
    with pytest.raises(UserError, match="'val_los' does not tell whether"):
        EarlyStopping("val_los")
