"""Which ends count against a task, and which are due to another one."""

import signal

from tests.trainer.launch.programs import ends, failing, leaving, stays, stops

UNTIL_10 = stays(until=10.0)


def loses_its_peer(process):
    """Leaves in two lives soon after worker 1 has begun as many."""
    simulation = process.simulation
    while simulation.lives("worker 1") < process.life:
        yield 0.02
    yield 0.5
    if process.life < 3:
        return process.leave(40)
    yield from UNTIL_10(process)
    return 0


def test_who_leaves_for_others_is_started_again_for_nothing(simulation):
    """Such as when an elastic worker is back."""
    leaves = leaving(for_others=True)
    done = simulation.launch(
        {"worker 0": ends(leaves, leaves, leaves, 0)}, max_restarts=1
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == 4
    # It does not wait, either.
    assert done.seconds < 1
    told = "due to another task: this does not count"
    assert done.err.count(told) == 3


def test_who_loses_a_stopped_peer_is_started_again_for_nothing(simulation):
    """It leaves before the stopped one is ended."""
    done = simulation.launch(
        {"worker 0": loses_its_peer, "worker 1": stops(lives=2, then=UNTIL_10)},
        max_restarts=2,
        stopped_seconds=1.0,
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 3
    told = "due to another task: this does not count"
    assert done.err.count(told) == 2
    assert "restart 2 of" in done.err


def test_who_hears_of_a_failure_before_its_end_is_pardoned(simulation):
    """A task that fails says so at once, and then takes its time to end."""
    fails = failing(step=lambda life: life)
    done = simulation.launch(
        {
            "worker 0": loses_its_peer,
            "worker 1": ends(fails, fails, after=1.0, then=UNTIL_10),
        },
        max_restarts=2,
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 3
    told = "worker 0 had lost worker 1: its restart does not count."
    assert told in done.err
    # Only those of worker 1 add up.
    assert done.err.count("restart 2 of at most 2") == 1


def test_those_that_are_preempted_together_each_count(simulation):
    """None of them has lost another one by an end that has a cause."""
    done = simulation.launch(
        {"worker 0": ends(75), "worker 1": ends(75)}, max_restarts=1
    )
    assert done.code == 75
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 2
    assert "does not count" not in done.err


def test_a_lost_peer_is_not_blamed_for_another_ones_failure(simulation):
    done = simulation.launch(
        {"worker 0": ends(75), "worker 1": ends(1, after=0.6)}
    )
    assert done.code == 1
    assert done.err.startswith("worker 1 failed")


def test_a_failure_long_after_is_another_one(simulation):
    done = simulation.launch(
        {"worker 0": ends(75), "worker 1": ends(1, after=4.0)}
    )
    assert done.code == 75
    assert done.err.startswith("worker 0 asks")
    assert simulation.last("worker 1").signals == [signal.SIGTERM]
