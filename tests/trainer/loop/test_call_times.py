import pytest

from trainer.loop.call_times import Calls
from trainer.loop.goodput import Accounts


def booked(*calls, longest=10.0):
    """What the accounts say after calls of (steps, seconds, waited)."""
    accounts = Accounts()
    # They can only move time that has passed: that of an attempt before.
    before = {"id": "", "seconds": {"start_up": 1000.0}, "saved_at": None}
    accounts.load_state(before)
    made = Calls(accounts, longest_seconds=longest)
    for steps, seconds, waited in calls:
        accounts.move(seconds, source="start_up", to="step")
        made.book(steps, seconds=seconds, waited=waited)
    return accounts.summary(), made


def test_the_first_call_is_split_by_the_pace_of_the_second():
    found, _ = booked((10, 7.0, 0.0), (20, 4.0, 0.0), (20, 4.0, 0.0))
    assert found["compile"] == pytest.approx(5.0)
    assert found["step"] == pytest.approx(10.0)


def test_a_first_call_that_compiled_nothing_stays_whole():
    found, _ = booked((10, 2.0, 0.0), (10, 3.0, 0.0))
    assert found["compile"] == 0.0
    assert found["step"] == pytest.approx(5.0)


def test_waiting_is_booked_one_call_later_and_never_exceeds_the_call():
    found, made = booked((1, 2.0, 0.5), (1, 2.0, 9.0))
    assert found["data_wait"] == pytest.approx(0.5)
    made.book(1, seconds=2.0, waited=0.0)
    assert found["step"] == pytest.approx(3.5)


def test_the_first_call_is_never_too_long():
    assert not booked((1, 99.0, 0.0))[1].too_long
    assert booked((1, 99.0, 0.0), (1, 11.0, 0.0))[1].too_long
    assert not booked((1, 1.0, 0.0), (1, 9.0, 0.0))[1].too_long


def test_a_call_that_was_held_up_once_is_not_too_long():
    calls = [(10, 1.0, 0.0), (10, 5.0, 0.0), (10, 60.0, 0.0)]
    assert not booked(*calls)[1].too_long
    assert booked(*calls, (30, 15.0, 0.0))[1].too_long


@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        ([(1, 6.0, 3.0)] * 3, "waited for data for 50% of their time. Arrays"),
        ([(1, 6.0, 0.3)] * 3, "waited for data for 5% of their time."),
        ([(1, 3.0, 2.0)] * 3, ""),
    ],
    ids=["much", "little", "too short to tell"],
)
def test_a_run_says_how_long_its_steps_waited(calls, sentence, caplog):
    _, made = booked(*calls)
    with caplog.at_level("INFO", logger="absl"):
        made.report_waiting()
    (found,) = [record.getMessage() for record in caplog.records] or [""]
    assert sentence in found
    assert bool(found) == bool(sentence)
    assert found.endswith("in memory.") == (sentence.endswith("Arrays"))
