"""Which tasks are needed, and which may be absent: with simulated tasks."""

import pytest

from tests.trainer.launch.programs import ends, failing, stays

UNTIL_10 = stays(until=10.0)


def test_a_peer_that_is_done_meets_the_one_that_comes_back(simulation):
    done = simulation.launch(
        {
            "worker 0": ends(-9, after=1.0, then=UNTIL_10),
            "worker 1": ends(0),
        },
        max_restarts=3,
    )
    assert done.code == 0
    assert simulation.lives("worker 0") == simulation.lives("worker 1") == 2


def test_after_the_chiefs_good_end_no_task_is_restarted(simulation):
    done = simulation.launch(
        {"worker 0": ends(0), "worker 1": ends(-9, after=0.7)}, max_restarts=3
    )
    assert done.code == 0
    assert simulation.lives("worker 1") == 1


def test_the_chiefs_good_end_ends_the_wait_for_a_restart(simulation):
    """The chief ends while the other task waits for four seconds."""
    done = simulation.launch(
        {"worker 0": stays(until=5.0), "worker 1": ends(-9)}, max_restarts=9
    )
    assert done.code == 0
    assert simulation.lives("worker 1") == 4
    assert done.seconds < 5.3


def test_an_evaluator_is_restarted_after_the_chiefs_end(simulation):
    done = simulation.launch(
        {"worker 0": ends(0), "evaluator 0": ends(-9, 0, after=0.5)},
        max_restarts=1,
    )
    assert done.code == 0
    assert simulation.lives("evaluator 0") == 2


def test_one_worker_may_be_left_out(simulation):
    done = simulation.launch(
        {"worker 0": ends(-9), "worker 1": UNTIL_10},
        max_restarts=1,
        min_workers=1,
    )
    assert done.code == 0, done.err
    assert simulation.lives("worker 0") == 2
    assert "The others go on without it: --min_workers=1." in done.err
    assert "Left out: worker 0." in done.out


@pytest.mark.parametrize(
    ("end", "min_workers", "expected", "lives"),
    [(-9, 2, 137, 2), (failing(), 1, 1, 2), (2, 1, 2, 1)],
)
def test_not_without_enough_others_and_not_with_a_defect(
    simulation, end, min_workers, expected, lives
):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": ends(end)},
        max_restarts=1,
        min_workers=min_workers,
    )
    assert done.code == expected
    assert simulation.lives("worker 1") == lives


def test_no_more_are_left_out_than_allowed(simulation):
    done = simulation.launch(
        {
            "worker 0": stays(),
            "worker 1": ends(-9, after=1.0),
            "worker 2": ends(-9, after=2.0),
        },
        max_restarts=1,
        min_workers=2,
    )
    assert done.code == 137
    assert "worker 1 was killed by SIGKILL. It was restarted" in done.err
    assert "go on without it: --min_workers=2" in done.err
    assert "Left out" not in done.out
    assert "\nworker 2 was killed by SIGKILL. It was restarted" in done.err


def test_without_min_workers_no_task_is_left_out(simulation):
    done = simulation.launch(
        {"worker 0": stays(), "worker 1": stays(), "worker 2": ends(-9)},
        max_restarts=1,
    )
    assert done.code == 137


def test_the_output_of_the_current_first_task_is_shown(simulation):
    """The first worker that is not left out, across its restarts."""

    def speaks(process):
        process.say(f"{process.name} life={process.life}")
        yield 0.0 if process.name == "worker 1" else 0.1
        yield from (
            ends(-9) if process.name == "worker 0" else stays(until=3.0)
        )(process)
        return -9 if process.name == "worker 0" else 0

    done = simulation.launch(
        {"worker 0": speaks, "worker 1": speaks},
        max_restarts=1,
        min_workers=1,
    )
    assert done.code == 0, done.err
    shown = [line for line in done.out.splitlines() if "life=" in line]
    assert shown == ["worker 0 life=1", "worker 0 life=2", "worker 1 life=1"]
