"""When a run is over, and what its tasks may still do then."""

import json
import math
import signal
import subprocess
import sys

import pytest

from tests.trainer.launch.programs import ends, failing, stays, stops
from trainer.cli.run_status import RunIsOver
from trainer.launch import arguments
from trainer.launch import main as launch_module

SOON = {"server": 0.5, "chief": 0.5, "worker": 0.5, "evaluator": 0.5}


def test_servers_are_ended_when_the_chief_is_done(simulation):
    done = simulation.launch(
        {
            "chief 0": ends(0, after=0.5),
            "worker 0": stays(),
            "worker 1": ends(75, after=0.9),
            "ps 0": stays(),
        },
        max_restarts=3,
        leave_seconds={"server": 1.0, "evaluator": 5.0},
    )
    assert (done.code, done.err) == (0, "")
    for name in ("worker 0", "ps 0"):
        assert simulation.last(name).signals == [signal.SIGTERM]
    assert 1.5 < done.seconds < 2.0


def test_servers_and_evaluator_may_finish_by_themselves(simulation):
    last = stays(until=4.0)
    done = simulation.launch(
        {"chief 0": ends(0), "worker 0": last, "evaluator 0": last}
    )
    assert done.code == 0
    for name in ("worker 0", "evaluator 0"):
        assert simulation.last(name).signals == []
    assert done.seconds < 4.3


def test_an_evaluators_failure_counts_after_the_chief_too(simulation):
    done = simulation.launch(
        {"chief 0": ends(0), "evaluator 0": ends(4, after=0.6)}
    )
    assert done.code == 4


@pytest.mark.parametrize(
    ("chief", "other", "seconds", "code"),
    [
        ("worker 0", "worker 1", 60.0, 1),
        ("worker 0", "evaluator 0", 300.0, 1),
        # These two only wait for their chief to end.
        ("chief 0", "worker 0", 10.0, 0),
        ("chief 0", "ps 0", 10.0, 0),
    ],
)
def test_a_task_that_never_ends_is_named(
    simulation, chief, other, seconds, code
):
    done = simulation.launch({chief: ends(0), other: stays()})
    assert done.code == code
    message = f"{other} kept running for too long after the chief had ended"
    assert done.err.startswith(message) is bool(code)
    assert seconds < done.seconds < seconds + 0.5
    assert simulation.last(other).signals == [signal.SIGTERM]


def test_a_task_that_restarts_too_late_is_not_a_failure(simulation):
    """It was killed in the last seconds, and waits for ended peers."""
    done = simulation.launch(
        {"worker 0": stays(until=0.5), "worker 1": ends(-9, then=stays())},
        max_restarts=3,
        leave_seconds=SOON,
    )
    assert done.code == 0, done.err
    assert "Done. 1 restart: worker 1 once." in done.out
    assert simulation.last("worker 1").returncode == -signal.SIGTERM


def test_an_overdue_elastic_worker_is_not_a_failure(simulation):
    done = simulation.launch(
        {"worker 0": ends(0), "worker 1": stays()},
        max_restarts=3,
        min_workers=1,
        leave_seconds=SOON,
    )
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "first",
    [stops(then=stays()), ends(-9, then=stays())],
    ids=["SIGSTOP", "SIGKILL"],
)
def test_enough_elastic_workers_may_end_without_the_first(simulation, first):
    other = stays(until=0.6)
    done = simulation.launch(
        {"worker 0": first, "worker 1": other, "worker 2": other},
        max_restarts=3,
        min_workers=2,
        leave_seconds=SOON,
        stopped_seconds=0.2,
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 1") == simulation.lives("worker 2") == 1


def test_fewer_elastic_workers_do_not_end_the_run(simulation):
    done = simulation.launch(
        {
            "worker 0": stays(until=9.0),
            "worker 1": ends(0),
            "worker 2": stays(until=9.0),
        },
        max_restarts=3,
        min_workers=2,
        leave_seconds=SOON,
    )
    assert done.code == 0, done.err
    assert done.seconds > 9


@pytest.mark.parametrize(
    ("end", "expected"),
    [(75, 0), (-9, 0), (-signal.SIGSEGV, 0), (failing(), 1)],
)
def test_only_an_error_counts_after_the_end(simulation, end, expected):
    done = simulation.launch(
        {"worker 0": ends(0), "worker 1": ends(end, after=0.7)}, max_restarts=3
    )
    assert done.code == expected, done.err
    assert simulation.lives("worker 1") == 1


def record(folder, reason, end):
    text = json.dumps({"exit_reason": reason, "end": end})
    (folder / "run.json").write_text(text)


@pytest.mark.parametrize("before", ["running", "done"])
def test_a_host_learns_from_the_record_that_the_run_is_over(
    simulation, tmp_path, before
):
    """The chief runs on another host; this task finds no peers any more."""
    record(tmp_path, before, "yesterday")

    def finds_nobody(process):
        yield 0.1
        if process.life == 2:
            record(tmp_path, "done", "now")
        return 75

    done = simulation.launch(
        {"worker 1": finds_nobody},
        max_restarts=3,
        run_is_over=RunIsOver(str(tmp_path), start_seconds=math.inf),
    )
    assert done.code == 0, done.err
    # An older record does not count: the run may be about to continue.
    assert simulation.lives("worker 1") == 2


def test_only_training_tasks_use_the_record(tmp_path):
    def tells(*flags):
        given = ["--gin_file=x.gin", f"--model_dir={tmp_path}", *flags]
        request = arguments.parse(["--num_workers=1", "--", *given])
        is_over = launch_module._record(request)
        record(tmp_path, "done", str(flags))
        return is_over()

    assert tells()
    assert not tells("--mode=continuous_eval")


def test_the_record_is_read_without_tensorflow(plain_starts, tmp_path):
    record(tmp_path, "done", "now")
    program = (
        "import sys; from trainer.cli.run_status import RunIsOver; "
        f"assert RunIsOver({str(tmp_path)!r}, start_seconds=0)(); "
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_signal_that_comes_with_the_good_end_changes_nothing(simulation):
    simulation.signal_at(3.0)
    finishing = stays(until=4.5, deaf=True)
    done = simulation.launch(
        {"worker 0": finishing, "worker 1": finishing}, max_restarts=3
    )
    assert done.code == 0
