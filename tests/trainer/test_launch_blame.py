"""Which ends count against a task, and which are due to another one."""

from tests.trainer.launching import AWAIT, LIFE, finish, lives

# Worker 0 lives no longer than worker 1, of the same number of life.
PEER = LIFE + (
    "other = path.replace('worker_0', 'worker_1')\n"
    "while not os.path.exists(other) or os.path.getsize(other) < life:\n"
    "    time.sleep(0.02)\n"
    "time.sleep(0.5)\n"
    "if life < 3: leave(40)\n" + AWAIT
)


def test_who_leaves_for_others_is_started_again_for_nothing(launch):
    """Such as when an elastic worker is back."""
    program = LIFE + "if life < 4: leave(40, for_others=True)\n" + AWAIT
    one = launch(("worker", 0, program), max_restarts=1)
    one.wait_for("worker_0", "life=4")
    code, _, err = finish(one)
    assert code == 0, err
    assert err.count("due to another task: this does not count") == 3


def test_who_loses_a_stopped_peer_is_started_again_for_nothing(launch):
    """It leaves before the stopped one is ended."""
    stops = LIFE + "if life < 3: kill(signal.SIGSTOP)\n" + AWAIT
    one = launch(
        ("worker", 0, PEER),
        ("worker", 1, stops),
        max_restarts=2,
        stopped_seconds=1,
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=3")
    code, _, err = finish(one)
    assert code == 0, err
    assert err.count("due to another task: this does not count") == 2
    assert "restart 2 of" in err


def test_who_hears_of_a_failure_before_its_end_is_pardoned(launch):
    """A task that fails says so at once, and then takes its time to end."""
    fails = LIFE + "if life < 3: time.sleep(1); fail('no', life)\n" + AWAIT
    one = launch(("worker", 0, PEER), ("worker", 1, fails), max_restarts=2)
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=3")
    code, _, err = finish(one)
    assert code == 0, err
    assert (lives(one, "worker_0"), lives(one, "worker_1")) == (3, 3)
    told = "worker 0 had lost worker 1: its restart does not count."
    assert told in err
    # Only those of worker 1 add up.
    assert err.count("restart 2 of at most 2") == 1
