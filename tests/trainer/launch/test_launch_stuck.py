"""Tasks that do not end by themselves, and tasks that only need more time."""

import signal

import pytest

from tests.trainer.launch.programs import ends, leaving, stays, stops

UNTIL_20 = stays(until=20.0)
FREEZES = stops(then=UNTIL_20)


@pytest.mark.parametrize("min_workers", [None, 1])
@pytest.mark.parametrize(
    "programs", [[FREEZES], [FREEZES, UNTIL_20], [UNTIL_20, FREEZES]]
)
def test_a_stopped_task_is_restarted(simulation, programs, min_workers):
    """The chief, another task, or the only task of this host."""
    done = simulation.launch(
        {f"worker {i}": program for i, program in enumerate(programs)},
        max_restarts=1,
        min_workers=min_workers,
        stopped_seconds=5.0,
    )
    assert done.code == 0, done.err
    name = f"worker {programs.index(FREEZES)}"
    message = f"{name} has been stopped (SIGSTOP) for 5 s: it is killed."
    assert message in done.err
    assert f"Done. 1 restart: {name} once." in done.out
    assert simulation.starts(name)[1] == pytest.approx(5.2, abs=0.15)


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


def test_a_chief_that_is_saving_is_waited_for(simulation):
    """Its peer left earlier, and could not meet it yet."""
    done = simulation.launch(
        {
            "worker 0": ends(leaving(), 0, after=3.0),
            "worker 1": ends(leaving(), 0, after=1.0),
        },
        max_restarts=3,
        rendezvous_seconds=0.3,
    )
    assert done.code == 0, done.err
    saved = simulation.processes["worker 0"][0].ended
    assert simulation.starts("worker 1")[1] >= saved
    assert "2 restarts: worker 0 once, worker 1 once." in done.out


def stays_at_first(process):
    yield from (stays() if process.life == 1 else UNTIL_20)(process)


def test_a_task_that_never_leaves_a_run_is_killed(simulation):
    done = simulation.launch(
        {
            "worker 0": ends(leaving(), after=1.0, then=UNTIL_20),
            "worker 1": stays_at_first,
        },
        max_restarts=3,
        left_behind_seconds=4.0,
        rendezvous_seconds=0.3,
    )
    assert done.code == 0, done.err
    message = "worker 1 is still in a run that ended 4 s ago: it is killed"
    assert message in done.err
    assert simulation.processes["worker 1"][0].ended == pytest.approx(
        5.0, abs=0.2
    )
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 2


def test_a_task_that_left_before_the_rendezvous_does_not_count(simulation):
    """The other task still waits for it in the rendezvous."""
    done = simulation.launch(
        {
            "worker 0": ends(75, after=1.0, then=UNTIL_20),
            "worker 1": UNTIL_20,
        },
        max_restarts=3,
        left_behind_seconds=1.0,
        rendezvous_seconds=0.3,
    )
    assert done.code == 0
    assert simulation.starts("worker 0")[1] == pytest.approx(1.0, abs=0.2)
    assert simulation.lives("worker 1") == 1


def test_a_task_started_late_may_not_have_met_the_one_that_left(simulation):
    """It may never have been in that run, and waits for the other task."""
    done = simulation.launch(
        {
            "worker 0": ends(leaving(), after=1.0, then=UNTIL_20),
            "worker 1": UNTIL_20,
        },
        max_restarts=3,
        left_behind_seconds=1.0,
        rendezvous_seconds=2.0,
    )
    assert done.code == 0
    assert simulation.lives("worker 1") == 1


def test_elastic_workers_leave_a_run_that_goes_on(simulation):
    done = simulation.launch(
        {
            "worker 0": ends(leaving(), after=1.0, then=UNTIL_20),
            "worker 1": UNTIL_20,
        },
        max_restarts=3,
        min_workers=1,
        left_behind_seconds=1.0,
        rendezvous_seconds=0.3,
    )
    assert done.code == 0
    assert simulation.starts("worker 0")[1] == pytest.approx(1.0, abs=0.2)
    assert simulation.lives("worker 1") == 1
