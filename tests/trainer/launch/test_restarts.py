"""Which tasks are restarted, and when: with simulated tasks."""

import math
import signal

import pytest

from tests.trainer.launch.programs import ends, failing, stays
from trainer.launch.process import Process


def test_only_the_task_that_ended_is_restarted(simulation):
    done = simulation.launch(
        {"worker 0": stays(until=9), "worker 1": ends(-9, then=stays(until=9))},
        max_restarts=3,
    )
    assert done.code == 0
    assert (simulation.lives("worker 0"), simulation.lives("worker 1")) == (
        1,
        2,
    )


def test_a_restart_after_a_lost_peer_does_not_count(simulation):
    # It asks for a restart a little after its peer's end.
    peer = ends(75, 75, after=0.7, then=stays(until=9))
    killed = ends(-9, -9, after=0.5, then=stays(until=9))
    done = simulation.launch(
        {"worker 0": peer, "worker 1": killed}, max_restarts=2
    )
    assert done.code == 0
    assert done.err.count("worker 0 asks") == 2
    assert done.err.count("it does not count") == 2
    assert "4 restarts: worker 0 2 times, worker 1 2 times." in done.out


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time(
    simulation,
):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(failing())}, max_restarts=9
    )
    assert done.code == 1
    assert simulation.lives("worker 1") == 2
    assert "step 40 twice: a defect, not bad luck." in done.err


def test_another_failure_or_step_goes_on_until_the_limit(simulation):
    done = simulation.launch(
        {"worker 0": ends(failing(step=lambda life: life))}, max_restarts=2
    )
    assert done.code == 1
    assert simulation.lives("worker 0") == 3
    assert "as often as --max_restarts=2 allows" in done.err
    assert "defect" not in done.err


@pytest.mark.parametrize("more", [0, 1])
def test_a_crash_is_placed_by_the_newest_checkpoint(simulation, tmp_path, more):
    """Progress between two crashes is read from the run directory."""
    folder = tmp_path / "checkpoints"
    (folder / "step_00000010").mkdir(parents=True)
    (folder / "tmp_0").mkdir()

    def crashes(process):
        yield 0.1
        name = f"step_{10 + more * process.life:08}"
        (folder / name).mkdir(exist_ok=True)
        return -signal.SIGSEGV

    done = simulation.launch(
        {"worker 0": crashes}, max_restarts=2, model_dir=str(tmp_path)
    )
    assert done.code == 139
    assert simulation.lives("worker 0") == (3 if more else 2)
    message = "The same SIGSEGV after step_00000010 twice"
    assert (message in done.err) is not more


def test_crashes_at_unknown_progress_are_not_a_defect(simulation):
    """The launcher cannot list the checkpoints of a remote directory."""
    crash = -signal.SIGSEGV
    done = simulation.launch(
        {"worker 0": ends(crash, crash, 0)}, max_restarts=2
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == 3


def test_a_users_mistake_ends_all_at_once(simulation):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(2)}, max_restarts=9
    )
    assert done.code == 2
    assert simulation.lives("worker 1") == 1
    assert done.seconds < 1


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (75, 75, "asks to be restarted (exit code 75)"),
        (2, 2, "exit code 2"),
        (3, 3, "exit code 3"),
        (-signal.SIGKILL, 137, "SIGKILL"),
        (-signal.SIGSEGV, 139, "SIGSEGV"),
    ],
)
def test_the_exit_code_is_that_of_the_failure(simulation, code, expected, text):
    done = simulation.launch({"worker 0": stays(), "worker 1": ends(code)})
    assert done.code == expected
    assert done.err.startswith("worker 1 ")
    assert text in done.err
    assert simulation.lives("worker 1") == 1
    # The other task was terminated.
    assert simulation.last("worker 0").signals == [signal.SIGTERM]


def test_a_task_over_the_limit_ends_all(simulation):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(-9)}, max_restarts=2
    )
    assert done.code == 137
    assert simulation.lives("worker 1") == 3
    assert "It was restarted 2 times within 3600 s" in done.err
    assert "Done" not in done.out
    assert simulation.last("worker 0").signals == [signal.SIGTERM]


def test_after_a_failure_the_others_end_within_ten_seconds(simulation):
    done = simulation.launch({"worker 0": stays(deaf=True), "ps 0": ends(3)})
    assert done.code == 3
    assert simulation.last("worker 0").signals == [
        signal.SIGTERM,
        signal.SIGKILL,
    ]
    assert 10 < done.seconds < 11


def test_later_restarts_wait_twice_as_long_each(simulation):
    done = simulation.launch({"worker 0": ends(75, after=0.5)}, max_restarts=9)
    assert done.code == 75
    lives = simulation.processes["worker 0"]
    waits = [
        later.started - one.ended
        for one, later in zip(lives, lives[1:], strict=False)
    ]
    assert waits == pytest.approx([0, 1, 2, 4, 8, 16, 32, 60, 60], abs=0.11)


def test_a_minute_without_failure_resets_the_back_off(simulation):
    def program(process):
        yield 61.0 if process.life == 4 else 1.0
        return 75

    simulation.launch({"worker 0": program}, max_restarts=5)
    starts = simulation.starts("worker 0")
    waits = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    assert waits == pytest.approx([1, 2, 3, 61, 2], abs=0.3)


@pytest.mark.parametrize(("window", "lives"), [(30.0, 3), (15.0, 5)])
def test_a_restart_counts_for_as_long_as_the_window(simulation, window, lives):
    """Ends at 10 s, 20 s, 31 s, ...: two restarts in 30 s, one in 15 s."""
    done = simulation.launch(
        {"worker 0": ends(75, 75, 75, 75, 0, after=10.0)},
        max_restarts=2,
        window=window,
    )
    assert done.code == (75 if lives == 3 else 0)
    assert simulation.lives("worker 0") == lives


def test_sigterm_during_the_wait_starts_nothing(simulation):
    # The fourth end is followed by four seconds of waiting.
    simulation.signal_at(5.0)
    done = simulation.launch({"worker 0": ends(75)}, max_restarts=20)
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


def test_a_task_that_cannot_be_started_is_retried(simulation, tmp_path):
    (tmp_path / "logs" / "worker_1.log").mkdir(parents=True)

    def start(task, log_path):
        real = task.name == "worker 1"
        return (Process if real else simulation.start_process)(task, log_path)

    done = simulation.launch(
        {"worker 0": stays(), "worker 1": stays()},
        max_restarts=1,
        start_process=start,
    )
    assert done.code == 1
    assert "worker 1 could not be started: [Errno 21]" in done.err
    assert "restart 1 of at most 1" in done.err
