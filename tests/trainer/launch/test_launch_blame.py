"""Which ends count against a task, and which are due to another task."""

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


def test_leaving_at_the_request_of_others_does_not_count(simulation):
    """For example when an elastic worker is back."""
    leaves = leaving(for_others=True)
    done = simulation.launch(
        {"worker 0": ends(leaves, leaves, leaves, 0)}, max_restarts=1
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == 4
    # Nor does it wait.
    assert done.seconds < 1
    message = "due to another task, so it does not count"
    assert done.err.count(message) == 3


def test_losing_a_stopped_peer_does_not_count(simulation):
    """It leaves before the stopped task is killed."""
    done = simulation.launch(
        {"worker 0": loses_its_peer, "worker 1": stops(lives=2, then=UNTIL_10)},
        max_restarts=2,
        stopped_seconds=1.0,
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 3
    message = "due to another task, so it does not count"
    assert done.err.count(message) == 2
    assert "restart 2 of" in done.err


def test_losing_a_peer_that_is_still_ending_does_not_count(simulation):
    """A failing task reports it at once, but may take a while to end."""
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
    message = "worker 0 had lost worker 1: its restart does not count."
    assert message in done.err
    # Only the restarts of worker 1 add up.
    assert done.err.count("restart 2 of at most 2") == 1


def test_tasks_preempted_together_each_count(simulation):
    """None of them lost another one that had failed."""
    done = simulation.launch(
        {"worker 0": ends(75), "worker 1": ends(75)}, max_restarts=1
    )
    assert done.code == 75
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 2
    assert "does not count" not in done.err


def test_a_lost_peer_is_not_blamed_for_the_failure_of_another(simulation):
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
