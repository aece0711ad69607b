"""Which tasks are restarted, and when: with simulated tasks."""

import signal

import pytest

from tests.trainer.launch.programs import (
    ends,
    failing,
    leaving,
    stays,
    stops,
    trains,
)
from trainer.launch.process import Process

UNTIL_20 = stays(until=20.0)


def lives(simulation):
    return {name: simulation.lives(name) for name in simulation.processes}


def loses_a_peer(process):
    """Trains, and leaves when the other one has ended for half a second."""
    process.begin_to_train(8)
    peer = simulation_peer(process)
    while peer.ended is None:
        yield 0.05
    yield 0.5
    return process.leave(8, "lost worker 1")


def simulation_peer(process):
    return process.simulation.processes["worker 1"][process.life - 1]


def test_a_failure_restarts_the_whole_group(simulation):
    """The peer leaves by itself, without a signal, and does not count."""
    done = simulation.launch(
        {
            "worker 1": trains(ends(-9, after=1.0, then=UNTIL_20)),
            "worker 0": lambda process: (
                loses_a_peer(process)
                if process.life == 1
                else UNTIL_20(process)
            ),
        },
        max_restarts=3,
    )
    assert done.code == 0, done.err
    assert lives(simulation) == {"worker 0": 2, "worker 1": 2}
    first = simulation.processes["worker 0"][0]
    assert (first.signals, first.returncode) == ([], 75)
    # Neither is started before both have left.
    for name in lives(simulation):
        assert simulation.starts(name)[1] == pytest.approx(1.5, abs=0.2)
    assert done.err == (
        "worker 1 was killed by SIGKILL. It is restarted with its peers "
        "(restart 1 of at most 3 in 3600 s).\n"
    )
    assert done.out == "Done. Restarts: worker 1: 1, worker 0: 1.\n"


def test_a_peer_that_does_not_train_yet_is_terminated(simulation):
    """It may wait in the rendezvous, and cannot know."""
    done = simulation.launch(
        {"worker 0": stays(until=9.0), "worker 1": ends(-9, 0, after=1.0)},
        max_restarts=3,
    )
    assert done.code == 0, done.err
    first = simulation.processes["worker 0"][0]
    assert first.signals == [signal.SIGTERM]
    assert first.ended == pytest.approx(1.0, abs=0.2)


def test_a_peer_that_is_done_is_needed_again(simulation):
    done = simulation.launch(
        {
            "worker 0": trains(ends(-9, after=1.0, then=stays(until=3.0))),
            "worker 1": ends(0),
        },
        max_restarts=3,
    )
    assert done.code == 0
    assert lives(simulation) == {"worker 0": 2, "worker 1": 2}


def test_a_chief_that_is_saving_is_waited_for(simulation):
    done = simulation.launch(
        {
            "worker 0": trains(ends(leaving(), after=900.0, then=ends(0))),
            "worker 1": trains(ends(-9, 0, after=1.0)),
        },
        max_restarts=3,
    )
    assert done.code == 0, done.err
    saved = simulation.processes["worker 0"][0]
    assert saved.signals == []
    assert simulation.starts("worker 1")[1] == pytest.approx(900.0, abs=0.2)


def test_a_task_that_never_leaves_is_killed(simulation):
    done = simulation.launch(
        {
            "worker 0": trains(ends(leaving(), after=1.0, then=UNTIL_20)),
            "worker 1": trains(
                lambda process: (stays() if process.life == 1 else UNTIL_20)(
                    process
                )
            ),
        },
        max_restarts=3,
        leave_seconds=4.0,
    )
    assert done.code == 0, done.err
    message = "worker 1 is still in a run that ended 4 s ago: it is killed."
    assert message in done.err
    ended = simulation.processes["worker 1"][0].ended
    assert ended == pytest.approx(5.0, abs=0.2)


def test_one_that_ignores_sigterm_is_killed(simulation):
    done = simulation.launch(
        {"worker 0": stays(deaf=True), "worker 1": ends(-9, 2, after=1.0)},
        max_restarts=3,
        settle_seconds=1.0,
        end_seconds=3.0,
    )
    assert done.code == 2
    first = simulation.processes["worker 0"][0]
    assert first.signals == [signal.SIGTERM, signal.SIGKILL]
    assert first.ended == pytest.approx(5.0, abs=0.2)


def test_the_cause_may_take_longer_to_end(simulation):
    """A failing task reports it to its peers at once, and ends later."""
    done = simulation.launch(
        {
            "worker 0": trains(ends(leaving(), after=1.0)),
            "worker 1": ends(failing(), after=6.0),
        },
        max_restarts=3,
    )
    # It was given the time to say what was wrong, each time.
    assert done.code == 1
    for one in simulation.processes["worker 1"]:
        assert one.signals == []
    assert lives(simulation) == {"worker 0": 2, "worker 1": 2}
    assert done.err.count("worker 1 failed (exit code 1): ValueError: no") == 2
    assert "worker 0 requests" not in done.err


def test_tasks_preempted_together_do_not_count(simulation):
    preempted = ends(leaving(), leaving(), leaving(), 0)
    done = simulation.launch(
        {"worker 0": preempted, "worker 1": preempted}, max_restarts=1
    )
    assert done.code == 0, done.err
    assert lives(simulation) == {"worker 0": 4, "worker 1": 4}
    message = "(exit code 75): StartAgain: no reason at step 40. It is "
    assert done.err.count(message) == 3
    assert done.err.count("(which does not count)") == 3


def test_of_two_ends_at_one_moment_the_signal_is_the_cause(simulation):
    done = simulation.launch(
        {"worker 0": ends(failing("lost"), 0), "worker 1": ends(-9, 0)},
        max_restarts=1,
    )
    assert done.code == 0
    assert done.err.startswith("worker 1 was killed by SIGKILL. It is")


@pytest.mark.parametrize("after", [1.0, 1.3])
def test_a_users_mistake_ends_the_launch_whatever_else_has_failed(
    simulation, after
):
    done = simulation.launch(
        {
            "worker 0": trains(ends(-9, after=1.0)),
            "worker 1": trains(ends(2, after=after)),
        },
        max_restarts=3,
    )
    assert done.code == 2
    assert lives(simulation) == {"worker 0": 1, "worker 1": 1}


def test_a_parameter_servers_worker_is_restarted_alone(simulation):
    done = simulation.launch(
        {
            "chief 0": trains(UNTIL_20),
            "worker 0": UNTIL_20,
            "worker 1": ends(-9, after=1.0, then=UNTIL_20),
            "ps 0": UNTIL_20,
        },
        max_restarts=3,
    )
    assert done.code == 0, done.err
    assert lives(simulation) == {
        "chief 0": 1,
        "worker 0": 1,
        "worker 1": 2,
        "ps 0": 1,
    }
    assert "It is restarted (restart 1" in done.err


def test_a_lost_server_restarts_the_chief_and_workers_that_are_done(simulation):
    done = simulation.launch(
        {
            "chief 0": trains(ends(leaving(), after=2.0, then=UNTIL_20)),
            # It is in the old run, and leaves by itself.
            "worker 0": ends(75, after=2.5, then=UNTIL_20),
            # The new chief needs it again.
            "worker 1": ends(0, after=0.5, then=UNTIL_20),
            # It waits for the new chief.
            "worker 2": UNTIL_20,
            "worker 3": ends(75, after=1.2, then=UNTIL_20),
            "ps 0": ends(-9, after=1.0, then=UNTIL_20),
        },
        max_restarts=3,
    )
    assert done.code == 0, done.err
    assert lives(simulation) == {
        "chief 0": 2,
        "worker 0": 2,
        "worker 1": 2,
        "worker 2": 1,
        "worker 3": 2,
        "ps 0": 2,
    }
    # Before the old chief has left, there is nothing to join.
    assert simulation.starts("worker 3")[1] == simulation.starts("chief 0")[1]


def test_an_evaluator_is_restarted_alone(simulation):
    done = simulation.launch(
        {
            "worker 0": UNTIL_20,
            "evaluator 0": ends(-9, after=1.0, then=UNTIL_20),
        },
        max_restarts=3,
    )
    assert done.code == 0, done.err
    assert lives(simulation) == {"worker 0": 1, "evaluator 0": 2}


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time(
    simulation,
):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(failing())}, max_restarts=9
    )
    assert done.code == 1
    assert simulation.lives("worker 1") == 2
    assert "The same failure at the same step twice: a defect." in done.err


def test_another_step_goes_on_until_the_limit(simulation):
    done = simulation.launch(
        {"worker 0": ends(failing(step=lambda life: life))}, max_restarts=2
    )
    assert done.code == 1
    assert simulation.lives("worker 0") == 3
    assert "once more than --max_restarts=2 allows" in done.err
    assert "defect" not in done.err
    assert "Done" not in done.out


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (75, 75, "requests a restart (exit code 75)"),
        (2, 2, "exit code 2"),
        (3, 3, "exit code 3"),
        (-signal.SIGKILL, 137, "SIGKILL"),
        (-signal.SIGSEGV, 139, "SIGSEGV"),
    ],
)
def test_the_exit_code_is_that_of_the_failure(simulation, code, expected, text):
    done = simulation.launch({"worker 1": ends(code), "evaluator 0": stays()})
    assert done.code == expected
    assert done.err.startswith("worker 1 ")
    assert text in done.err
    assert simulation.lives("worker 1") == 1
    # The other task was terminated.
    assert simulation.last("evaluator 0").signals == [signal.SIGTERM]


def test_after_a_failure_the_others_end_within_ten_seconds(simulation):
    done = simulation.launch({"worker 0": stays(deaf=True), "ps 0": ends(3)})
    assert done.code == 3
    assert simulation.last("worker 0").signals == [
        signal.SIGTERM,
        signal.SIGKILL,
    ]
    assert 10 < done.seconds < 11


def test_later_restarts_wait_twice_as_long_each(simulation):
    done = simulation.launch({"worker 0": ends(-9, after=0.5)}, max_restarts=9)
    assert done.code == 137
    each = simulation.processes["worker 0"]
    waits = [
        later.started - one.ended
        for one, later in zip(each, each[1:], strict=False)
    ]
    assert waits == pytest.approx([0, 1, 2, 4, 8, 16, 32, 60, 60], abs=0.11)


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


@pytest.mark.parametrize("min_workers", [None, 1])
@pytest.mark.parametrize("stopped", ["worker 0", "worker 1"])
def test_a_stopped_task_is_killed_and_restarted(
    simulation, stopped, min_workers
):
    freezes = trains(stops(then=UNTIL_20))
    # The other one has lost it before.
    other = trains(ends(leaving(), after=4.0, then=UNTIL_20))
    both = {"worker 0": other, "worker 1": other, stopped: freezes}
    done = simulation.launch(
        both, max_restarts=1, min_workers=min_workers, stopped_seconds=5.0
    )
    assert done.code == 0, done.err
    message = f"{stopped} has been stopped (SIGSTOP) for 5 s: it is killed."
    assert done.err.startswith(message)
    assert f"{stopped} was killed by SIGKILL. It is restarted" in done.err
    assert lives(simulation) == {"worker 0": 2, "worker 1": 2}
    assert simulation.starts(stopped)[1] == pytest.approx(5.2, abs=0.2)


def test_a_short_stop_does_no_harm(simulation):
    for start in (1, 3, 5, 7):
        simulation.at(
            start, lambda: simulation.last("worker 0").signal(signal.SIGSTOP)
        )
        simulation.at(
            start + 0.8,
            lambda: simulation.last("worker 0").signal(signal.SIGCONT),
        )
    done = simulation.launch({"worker 0": UNTIL_20}, stopped_seconds=1.0)
    assert done.code == 0
    assert simulation.last("worker 0").signals.count(signal.SIGSTOP) == 4


def test_time_while_the_launcher_is_stopped_does_not_count(simulation):
    """As when a scheduler suspends a job."""
    simulation.suspend_at(1.0, 500.0)
    done = simulation.launch({"worker 0": UNTIL_20}, stopped_seconds=3.0)
    assert done.code == 0, done.err
    assert done.seconds > 501


@pytest.mark.parametrize("lost", ["worker 0", "worker 1"])
def test_one_elastic_worker_may_be_left_out(simulation, lost):
    """The output of the first that remains is shown."""

    def speaks(process):
        process.say(f"{process.name} life={process.life}")
        yield from UNTIL_20(process)

    done = simulation.launch(
        {"worker 0": speaks, "worker 1": speaks, lost: ends(-9, after=1.0)},
        max_restarts=1,
        min_workers=1,
    )
    assert done.code == 0, done.err
    assert simulation.lives(lost) == 2
    assert "The others go on without it: --min_workers=1." in done.err
    assert f"Left out: {lost}." in done.out
    assert ("worker 1 life=3" in done.out) is (lost == "worker 0")


@pytest.mark.parametrize(
    ("end", "min_workers", "expected", "count"),
    [(-9, 2, 137, 2), (-9, None, 137, 2), (failing(), 1, 1, 2), (2, 1, 2, 1)],
)
def test_not_without_enough_others_and_not_with_a_defect(
    simulation, end, min_workers, expected, count
):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(end)},
        max_restarts=1,
        min_workers=min_workers,
    )
    assert done.code == expected
    assert simulation.lives("worker 1") == count
    assert "Left out" not in done.out


def test_no_more_are_left_out_than_allowed(simulation):
    done = simulation.launch(
        {
            "worker 0": stays(),
            "worker 1": ends(-9, after=1.0),
            "worker 2": ends(0, 0, -9, after=2.0),
        },
        max_restarts=1,
        min_workers=2,
    )
    assert done.code == 137
    assert "go on without it: --min_workers=2" in done.err
    assert "\nworker 2 was killed by SIGKILL. That is once more" in done.err
