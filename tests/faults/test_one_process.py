"""A single process that is killed, asked to leave, stopped or that hangs."""

import json
import os
import signal
import time

import pytest

from tests.faults import reading
from tests.faults.runs import is_stopped, wait_for

SHORT = [
    ("evaluation", 8, "SIGKILL"),
    ("writing", 12, "SIGKILL"),
    ("step", 14, "SIGTERM"),
]
POINTS = ("import", "model", "setup", "begin", "step", "evaluation", "log")
LONG = [
    (point, step, name)
    for point in (*POINTS, "save", "writing", "close")
    for step in ((0,) if point in POINTS[:4] else (7, 16))
    for name in ("SIGKILL", "SIGTERM", "SIGINT")
    # Ctrl-C takes the way of SIGTERM.
    if name != "SIGINT" or point in ("setup", "step", "evaluation")
]
# Such a signal does what it does to any program.
BEFORE_HANDLERS = ("import", "model", "setup")


def expected_codes(point, name):
    number = signal.Signals[name]
    if name == "SIGKILL":
        return {-number}
    if point == "close":
        # All is done; what ended it is no news any more.
        return {0, 75, -number, 130}
    if point in BEFORE_HANDLERS:
        return {75, -number, 130}
    return {75}


def disturb(runs, table):
    """Starts the run again and again, and once more."""
    for point, step, name in table:
        runs.plan(f"single {point} {step} {name}")
        process = runs.train()
        process.must_end(*expected_codes(point, name))
        done = (runs.plan_dir / "done_0").exists()
        assert done, f"{point} {step} {name} was never reached"
    runs.plan()
    return runs.train().must_end(0)


def test_kills_at_each_phase_leave_no_trace(runs, undisturbed):
    """It goes on as if nothing had happened, byte by byte."""
    whole = undisturbed()
    for point, step, name in SHORT:
        runs.plan(f"single {point} {step} {name}")
        process = runs.train().must_end(*expected_codes(point, name))
        if name == "SIGTERM":
            # It has saved where it was.
            assert reading.newest(runs.model_dir) >= step
            assert reading.record(runs.model_dir)["exit_reason"] == (
                "start_again"
            )
            assert "SIGTERM" in process.log
    runs.plan()
    runs.train().must_end(0)
    reading.assert_equal(runs.model_dir, whole)
    reading.assert_tidy(runs.model_dir)
    record = reading.record(runs.model_dir)
    assert record["exit_reason"] == "done"
    reasons = [attempt["exit_reason"] for attempt in record["previous"]]
    assert reasons == ["killed"] * 2 + ["start_again"]
    # Nobody has asked the killed ones to leave.
    assert record["accounts"]["lost"] > 0
    assert record["accounts"]["paused"] > 0
    assert record["restarts"] == 3


@pytest.mark.long
def test_kills_leave_no_trace_in_stacks_of_batches(runs, undisturbed):
    """One program over many batches goes on in the middle of a stack."""
    flags = ("--jit_compile=xla_stack", "--steps_per_loop=5")
    whole = undisturbed(*flags)
    for point, step, name in SHORT:
        runs.plan(f"single {point} {step} {name}")
        runs.train(*flags).must_end(*expected_codes(point, name))
    runs.plan()
    runs.train(*flags).must_end(0)
    reading.assert_equal(runs.model_dir, whole)
    reading.assert_tidy(runs.model_dir)


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "name"), sorted({(point, name) for point, _, name in LONG})
)
def test_each_signal_at_each_point(runs, undisturbed, point, name):
    whole = undisturbed()
    table = [row for row in LONG if row[0] == point and row[2] == name]
    disturb(runs, table)
    reading.assert_equal(runs.model_dir, whole)
    reading.assert_tidy(runs.model_dir)


def test_a_stop_is_no_harm_and_sigusr1_saves(runs, undisturbed):
    runs.plan(
        "single step 14 SIGSTOP",
        "single step 14 hold",
        "single step 16 hold",
    )
    process = runs.train()
    wait_for(lambda: is_stopped(process.pid), "the stop")
    assert 16 not in reading.checkpoints(runs.model_dir)
    process.signal(signal.SIGUSR1)
    process.signal(signal.SIGCONT)
    process.wait_for(runs.is_held, "step 14")
    # A thread of its own hears signals; the step may be over before.
    process.wait_for_log("SIGUSR1: saving")
    runs.release()
    # That is no multiple of the period.
    process.wait_for(
        lambda: 16 in reading.whole_steps(runs.model_dir), "the save"
    )
    runs.release()
    process.must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed())


def test_ctrl_c_saves_and_a_second_one_ends_it(runs):
    """The first one waits for the end of what is under way."""
    runs.plan("single step 8 SIGINT", "single step 8 hold")
    process = runs.train()
    process.wait_for(runs.is_held, "the first SIGINT")
    time.sleep(0.3)
    assert not process.is_over()
    begin = time.monotonic()
    process.signal(signal.SIGINT)
    process.must_end(130)
    assert time.monotonic() - begin < 60
    # It was held before the end of the host loop: nothing of it is saved.
    assert reading.newest(runs.model_dir) == 6
    assert reading.record(runs.model_dir)["exit_reason"] == "interrupted"


@pytest.mark.long
def test_what_cannot_be_saved_in_time_ends_with_75(runs, undisturbed):
    runs.plan("single step 14 hold")
    process = runs.train("--gin.Preemption.grace_seconds=1.0")
    process.wait_for(runs.is_held, "the step")
    process.signal(signal.SIGTERM)
    process.must_end(75, seconds=60)
    assert reading.newest(runs.model_dir) == 12
    assert reading.record(runs.model_dir)["exit_reason"] == "start_again"
    runs.train().must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed())


@pytest.mark.parametrize(
    ("point", "limit"),
    [
        pytest.param("forward", "step_seconds", marks=pytest.mark.long),
        ("predict", "evaluation_seconds"),
    ],
)
def test_what_hangs_is_ended_with_its_stack(runs, point, limit):
    runs.plan(f"single {point} 0 hold")
    flags = ["--gin.Trainer.model=@hanging_net", f"--gin.Watchdog.{limit}=3.0"]
    process = runs.train(*flags).must_end(75)
    assert runs.is_held()
    assert "user_code.py" in process.log
    assert reading.record(runs.model_dir)["exit_reason"] == "start_again"


@pytest.mark.long
def test_what_hangs_twice_at_a_step_is_a_defect(runs):
    flags = ["--gin.Trainer.model=@hanging_net"]
    flags += ["--gin.Watchdog.evaluation_seconds=3.0"]
    for code, reason in ((75, "start_again"), (1, "error")):
        runs.plan("single predict 0 hold")
        process = runs.train(*flags).must_end(code)
        assert reading.record(runs.model_dir)["exit_reason"] == reason
    assert "error: the same failure happened at the same step" in process.log
    runs.train(*flags).must_end(0)


@pytest.mark.long
def test_lines_of_a_killed_run_are_whole(runs, undisturbed):
    """A line that was cut off is dropped, and written again."""
    runs.plan("single log 16 SIGKILL")
    runs.train().must_end(-signal.SIGKILL)
    path = runs.model_dir / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"step": 16, "spl')
    runs.train().must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed())


@pytest.mark.long
def test_a_failure_of_the_users_own_code_has_its_traceback(runs, undisturbed):
    runs.plan("single step 14 raise")
    process = runs.train().must_end(1)
    assert "Traceback" in process.log
    assert "RuntimeError: broken on purpose" in process.log
    assert reading.record(runs.model_dir)["exit_reason"] == "error"
    runs.train().must_end(0)
    reading.assert_equal(runs.model_dir, undisturbed())


@pytest.mark.long
def test_eleven_steps_then_all_are_as_all_at_once(runs, undisturbed):
    runs.train("--train_steps=12").must_end(0)
    logged = (runs.model_dir / "metrics.jsonl").read_text().splitlines()
    begin = json.loads(logged[0])
    runs.train().must_end(0)
    whole = reading.metrics(undisturbed())
    found = reading.metrics(runs.model_dir)
    # The end of the first is evaluated too.
    assert [one for one in found if one in whole] == whole
    assert begin["step"] == 4
    assert os.path.isdir(runs.model_dir / "checkpoints")
