import subprocess
import sys
import time

import pytest

from trainer.loop.goodput import PHASES, Accounts


def test_phases_add_up_to_the_time_since_the_process_began():
    """In a process of its own: its start is what counts."""
    code = (
        "import time; begin = time.time(); time.sleep(0.5)\n"
        "from trainer.loop.goodput import Accounts\n"
        "accounts = Accounts()\n"
        "accounts.started()\n"
        "before = time.time()\n"
        "with accounts.phase('step'): time.sleep(0.25)\n"
        "step = time.time() - before\n"
        "time.sleep(0.25)\n"
        "found = accounts.summary()\n"
        "print(time.time() - begin, step, *found.values())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    elapsed, step, *values = map(float, done.stdout.split())
    found = dict(zip((*PHASES, "total", "goodput"), values, strict=True))
    assert elapsed <= found["total"] < elapsed + 5
    assert found["start_up"] >= 0.5
    assert found["step"] == pytest.approx(step, abs=0.1)
    assert found["other"] >= 0.25
    assert found["goodput"] == pytest.approx(found["step"] / found["total"])


def test_an_inner_phase_is_not_counted_twice():
    accounts = Accounts()
    before = accounts.summary()["total"]
    with accounts.phase("evaluation"):
        time.sleep(0.02)
        with accounts.phase("checkpoint"):
            time.sleep(0.05)
    after = accounts.summary()
    assert after["checkpoint"] >= 0.05
    assert after["evaluation"] >= 0.02
    both = after["evaluation"] + after["checkpoint"]
    assert both <= after["total"] - before + 1e-6


def test_moving_takes_no_more_than_there_is():
    accounts = Accounts()
    with accounts.phase("step"):
        time.sleep(0.01)
    step = accounts.summary()["step"]
    accounts.move(100.0, source="step", to="data_wait")
    found = accounts.summary()
    assert found["step"] == 0.0
    assert found["data_wait"] == pytest.approx(step)


def test_time_since_the_checkpoint_is_lost_unless_the_run_was_over():
    first = Accounts()
    first.started()
    with first.phase("step"):
        time.sleep(0.05)
    killed, done = first.state(over=False), first.state(over=True)
    days = 10 * 86400.0
    killed["saved_at"] -= days
    resumed, extended = Accounts(), Accounts()
    resumed.load_state(killed)
    extended.load_state(done)
    assert resumed.summary()["lost"] == pytest.approx(days, abs=60)
    assert extended.summary()["lost"] == 0.0
    for accounts in (resumed, extended):
        assert accounts.summary()["step"] >= 0.05


def test_doing_tells_all_threads():
    accounts = Accounts()
    with accounts.phase("step"), accounts.aside("checkpoint"):
        assert [d.phase for d in accounts.doing()] == ["step", "checkpoint"]
    assert accounts.doing() == []


def test_no_time_is_counted_twice_within_a_process():
    """A second training with the same accounts, and a second trainer."""
    begin = time.time()
    first = Accounts()
    before = first.summary()["total"]
    time.sleep(0.05)
    first.load_state(first.state(over=False))
    passed = first.summary()["total"] - before
    assert passed == pytest.approx(time.time() - begin, abs=0.04)
    saved = first.state(over=False)
    second = Accounts()
    second.load_state(saved)
    total = second.summary()["total"] - before
    assert total == pytest.approx(time.time() - begin, abs=0.04)
