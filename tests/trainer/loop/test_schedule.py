"""Periods in every unit, and when they are due."""

import pytest

from trainer import UserError
from trainer.loop.schedule import Ticker
from trainer.plugin_api import parse_period
from trainer.values.periods import Period


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (100, Period(steps=100)),
        ("100", Period(steps=100)),
        ("10k steps", Period(steps=10_000)),
        ("2 epochs", Period(steps=14)),
        ("0.5 epochs", Period(steps=4)),
        ("30s", Period(seconds=30.0)),
        ("1.5h", Period(seconds=5400.0)),
        ("2 minutes", Period(seconds=120.0)),
    ],
)
def test_every_unit(text, expected):
    found = parse_period(text, name="every", steps_per_epoch=7)
    assert found == expected


@pytest.mark.parametrize("text", ["often", "3 parsecs", "0", "-5", "", "1 2"])
def test_what_is_no_period_is_named(text):
    with pytest.raises(UserError, match="every = "):
        parse_period(text, name="every")


def test_an_unknown_length_is_named():
    with pytest.raises(UserError, match="steps in an epoch is not known"):
        parse_period("2 epochs", name="eval_every")


def test_crossing_fires_at_the_next_boundary():
    ticker = Ticker(Period(steps=10), bool)
    ticker.start(0)
    fired = [step for step in range(7, 50, 7) if ticker.due(step)]
    assert fired == [14, 21, 35, 42]


def test_next_step_is_after_the_present_one():
    period = Period(steps=10)
    assert [period.next_step(s) for s in (0, 9, 10, 11)] == [10, 10, 20, 20]


def test_any_process_decides_for_all():
    asked = []

    def any_process(flag):
        asked.append(flag)
        return True

    ticker = Ticker(Period(seconds=1000.0), any_process)
    assert ticker.due(1)
    assert asked == [False]
