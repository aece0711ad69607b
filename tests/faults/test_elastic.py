"""Workers that may be away: a run starts, goes on and grows again."""

import re
import signal

import pytest

from tests.faults import reading

PAIR = {"worker": 2}
ELASTIC = (
    "--gin.MultiWorkerMirrored.min_workers=1",
    "--gin.MultiWorkerMirrored.start_seconds=100.0",
)
# Until the one that is away is back.
ENDLESS = ("--train_steps=1000000", "--gin.run.eval_every=1000000")


def given_workers(model_dir):
    """How many workers the run's last attempt had, and how many are named."""
    cluster = reading.record(model_dir)["cluster"]["cluster"]
    count = len(cluster["jobs"]["worker"])
    given = cluster.get("given", cluster)
    return count, len(given["jobs"]["worker"])


def losses(model_dir):
    lines = reading.metrics(model_dir)
    return [one["loss"] for one in lines if one["split"] == "train"]


def shrink(runs):
    """One of two is lost."""
    runs.plan("worker_1 step 8 SIGKILL")
    tasks = runs.tasks(*ELASTIC, **PAIR)
    tasks["worker_1"].must_end(-signal.SIGKILL)
    tasks["worker_0"].must_end(75)
    tasks["worker_0"].sentence("lost", "worker 1")


def notice(runs):
    """One of two goes on, and leaves for the other one's return.

    Returns:
        The process of the one that is back, which waits for the other one.
    """
    # Worker 0 alone is enough; it runs on until the other one comes.
    alone = runs.tasks(*ELASTIC, *ENDLESS, start=["worker_0"], **PAIR)
    step = reading.newest(runs.model_dir)
    alone["worker_0"].wait_for(
        lambda: reading.newest(runs.model_dir) > step, "more steps"
    )
    assert given_workers(runs.model_dir) == (1, 2)
    back = runs.tasks(*ELASTIC, *ENDLESS, start=["worker_1"], **PAIR)
    alone["worker_0"].must_end(75)
    alone["worker_0"].sentence("worker 1")
    assert not back["worker_1"].is_over()
    # It has saved where it left, and the loss goes down all the while.
    found = losses(runs.model_dir)
    assert sum(found[-3:]) < sum(found[:3])
    return back


def test_a_run_goes_on_with_fewer_and_notices_who_is_back(runs):
    notice(runs)


@pytest.mark.long
def test_a_run_grows_again(runs):
    shrink(runs)
    both = notice(runs)
    step = reading.newest(runs.model_dir)
    both |= runs.tasks(*ELASTIC, *ENDLESS, start=["worker_0"], **PAIR)
    both["worker_0"].wait_for(
        lambda: reading.newest(runs.model_dir) > step + 6, "steps of both"
    )
    assert given_workers(runs.model_dir) == (2, 2)
    for process in both.values():
        process.signal(signal.SIGTERM)
    for process in both.values():
        process.must_end(75)
    found = losses(runs.model_dir)
    assert sum(found[-3:]) < sum(found[:3])


@pytest.mark.long
def test_the_loss_does_not_depend_on_who_is_there(runs, undisturbed):
    """Two workers, one, and three, against one process."""
    deterministic = ("--gin.Trainer.model=@plain_net",)
    expected = reading.metrics(undisturbed(*deterministic))
    for steps, start, workers in (
        (8, None, 2),
        (16, ["worker_0"], 2),
        (24, None, 3),
    ):
        tasks = runs.tasks(
            *deterministic,
            *ELASTIC,
            f"--train_steps={steps}",
            start=start,
            worker=workers,
        )
        for process in tasks.values():
            process.must_end(0)
    found = reading.metrics(runs.model_dir)
    assert [(one["step"], one["split"]) for one in found] == [
        (one["step"], one["split"]) for one in expected
    ]
    for one, two in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)


@pytest.mark.long
def test_too_few_are_named(runs):
    tasks = runs.tasks(
        "--gin.MultiWorkerMirrored.min_workers=2",
        "--gin.MultiWorkerMirrored.start_seconds=3.0",
        start=["worker_0"],
        worker=3,
    )
    tasks["worker_0"].must_end(75, seconds=90)
    tasks["worker_0"].sentence("worker 1", "worker 2")


@pytest.mark.long
def test_worker_0_is_waited_for_and_named(runs):
    tasks = runs.tasks(
        *ELASTIC,
        "--gin.MultiWorkerMirrored.start_seconds=3.0",
        start=["worker_1"],
        **PAIR,
    )
    tasks["worker_1"].must_end(75, seconds=90)
    tasks["worker_1"].sentence("worker 0")


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker_0", "worker_1"])
def test_the_launcher_goes_on_with_fewer_and_with_all(runs, victim):
    runs.plan(f"{victim} step 8 SIGKILL")
    # So that the run is not over before the victim is back.
    runs.environ["FAULTS_PHASE_SECONDS"] = "0.05"
    launcher = runs.launch(
        "--num_workers=2",
        "--min_workers=1",
        flags=["--train_steps=600", "--gin.run.eval_every=600"],
    )
    launcher.must_end(0)
    launcher.sentence(victim.replace("_", " "), "SIGKILL")
    assert reading.newest(runs.model_dir) == 600
    assert reading.updates(reading.checkpoints(runs.model_dir)[600]) == 600
    found = losses(runs.model_dir)
    assert sum(found[-3:]) < sum(found[:3])


@pytest.mark.long
def test_the_launcher_leaves_one_out_that_cannot_stay(runs):
    runs.plan(*["worker_1 step 8 SIGKILL"] * 20)
    launcher = runs.launch(
        "--num_workers=2", "--min_workers=1", "--max_restarts=1"
    )
    launcher.must_end(0)
    assert re.search("worker 1", launcher.log)
    assert reading.newest(runs.model_dir) == 24
