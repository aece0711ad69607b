"""When a run is over, and how a signal ends it: with simulated tasks."""

import json
import math
import signal
import subprocess
import sys

import pytest

from tests.trainer.launch.programs import ends, failing, leaving, stays, trains
from trainer.launch import arguments
from trainer.launch import main as launch_module
from trainer.runtime.run_status import RunIsOver


def test_servers_are_ended_when_the_chief_is_done(simulation):
    done = simulation.launch(
        {
            "chief 0": trains(ends(0, after=0.5)),
            "worker 0": stays(),
            "worker 1": ends(75, after=0.9),
            "ps 0": stays(),
        },
        max_restarts=3,
        serve_seconds=1.0,
    )
    assert done.code == 0
    for name in ("worker 0", "ps 0"):
        assert simulation.last(name).signals == [signal.SIGTERM]
        assert f"{name} still runs after the end of the run" in done.err
    assert simulation.lives("worker 1") == 1
    assert 1.5 < done.seconds < 2.0


def test_servers_and_evaluator_may_finish_by_themselves(simulation):
    done = simulation.launch(
        {
            "chief 0": ends(0),
            "worker 0": stays(until=4.0),
            "evaluator 0": stays(until=900.0),
        }
    )
    assert (done.code, done.err) == (0, "")
    for name in ("worker 0", "evaluator 0"):
        assert simulation.last(name).signals == []
    assert 900 < done.seconds < 901


def test_an_evaluators_failure_counts_after_the_chief_too(simulation):
    done = simulation.launch(
        {"chief 0": ends(0), "evaluator 0": ends(4, after=0.6)}
    )
    assert done.code == 4


def test_an_evaluator_is_restarted_after_the_chiefs_end(simulation):
    done = simulation.launch(
        {"worker 0": ends(0), "evaluator 0": ends(-9, 0, after=0.5)},
        max_restarts=1,
    )
    assert done.code == 0
    assert simulation.lives("evaluator 0") == 2


@pytest.mark.parametrize(
    ("program", "seconds"), [(trains(stays()), 60.0), (stays(), 10.0)]
)
def test_a_worker_that_never_ends_is_ended(simulation, program, seconds):
    """One that trains may still have something to do at the end."""
    done = simulation.launch({"worker 0": ends(0), "worker 1": program})
    assert done.code == 0
    assert "worker 1 still runs after the end of the run: ended." in done.err
    assert seconds < done.seconds < seconds + 0.5
    assert simulation.last("worker 1").signals == [signal.SIGTERM]


def test_it_is_killed_in_the_end(simulation):
    done = simulation.launch(
        {"worker 0": ends(0), "worker 1": stays(deaf=True)},
        serve_seconds=2.0,
        end_seconds=3.0,
    )
    assert done.code == 0
    last = simulation.last("worker 1")
    assert last.signals == [signal.SIGTERM, signal.SIGKILL]
    assert done.seconds < 5.5


@pytest.mark.parametrize("after", [0.3, 4.5])
def test_after_the_chiefs_good_end_no_task_is_restarted(simulation, after):
    """Whether it ends before or after the chief, which ends at 4 s."""
    done = simulation.launch(
        {
            "worker 0": trains(stays(until=4.0)),
            "worker 1": trains(ends(-9, after=after)),
        },
        max_restarts=3,
    )
    assert done.code == 0
    assert simulation.lives("worker 1") == 1


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


def test_enough_elastic_workers_may_end_without_the_first(simulation):
    other = trains(stays(until=0.6))
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": other, "worker 2": other},
        max_restarts=3,
        min_workers=2,
        serve_seconds=0.5,
    )
    assert done.code == 0
    assert done.seconds < 1.5


def test_fewer_elastic_workers_do_not_end_the_run(simulation):
    done = simulation.launch(
        {
            "worker 0": stays(until=9.0),
            "worker 1": ends(0),
            "worker 2": stays(until=9.0),
        },
        max_restarts=3,
        min_workers=2,
        serve_seconds=0.5,
    )
    assert done.code == 0, done.err
    assert done.seconds > 9


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
        "import sys; from trainer.runtime.run_status import RunIsOver; "
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


def test_sigterm_during_the_wait_starts_nothing(simulation):
    # The fourth end is followed by four seconds of waiting.
    simulation.signal_at(5.0)
    done = simulation.launch({"worker 0": ends(leaving())}, max_restarts=20)
    assert done.code == 75
    assert done.seconds < 5.3
    assert simulation.lives("worker 0") == 4
    assert "SIGTERM: ending all processes" in done.err


@pytest.mark.parametrize(
    ("number", "sent", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        # Tasks handle the other two only.
        (signal.SIGHUP, signal.SIGTERM, 129),
    ],
)
def test_a_task_that_ends_after_a_signal_is_not_restarted(
    simulation, number, sent, code
):
    simulation.signal_at(3.0, number)
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": stays()}, max_restarts=3
    )
    assert done.code == code
    for name in ("worker 0", "worker 1"):
        assert simulation.lives(name) == 1
        assert simulation.last(name).signals == [sent]


def test_a_task_that_ignores_sigterm_is_killed(simulation):
    simulation.signal_at(3.0)
    done = simulation.launch({"worker 0": stays(deaf=True)}, end_seconds=7.0)
    assert done.code == 143
    assert "SIGTERM" in done.err
    assert simulation.last("worker 0").signals == [
        signal.SIGTERM,
        signal.SIGKILL,
    ]
    assert 10 < done.seconds < 11


def saves(process):
    """Takes four seconds after SIGTERM."""
    process.handlers[signal.SIGTERM] = lambda: process.end_in(4.0, 75)
    yield math.inf


@pytest.mark.parametrize(
    ("end_seconds", "code"),
    # Killed before it has saved.
    [(30.0, 75), (2.0, 143)],
)
def test_saving_is_limited_in_time(simulation, end_seconds, code):
    simulation.signal_at(3.0)
    done = simulation.launch({"worker 0": saves}, end_seconds=end_seconds)
    assert done.code == code


def test_a_second_signal_ends_the_wait(simulation):
    simulation.signal_at(3.0)
    simulation.signal_at(5.0)
    done = simulation.launch({"worker 0": saves})
    assert done.code == 143
    assert done.seconds < 5.3
    assert simulation.last("worker 0").signals == [
        signal.SIGTERM,
        signal.SIGKILL,
    ]
