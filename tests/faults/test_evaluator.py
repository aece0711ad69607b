"""An evaluator beside training is killed, and training beside it."""

import signal

import pytest

from tests.faults import reading

pytestmark = pytest.mark.long
FLAGS = ("--gin.run.eval_poll_seconds=0.05", "--gin.run.eval_timeout='100s'")
LAUNCH = ("--num_workers=1", "--evaluator")


def evaluations(model_dir, name):
    lines = reading.metrics(model_dir, name)
    return {one["step"]: one["loss"] for one in lines if one["split"] == "eval"}


def must_agree(model_dir):
    """What it measured is what the run itself measures there."""
    found = evaluations(model_dir, "metrics_evaluator.jsonl")
    expected = evaluations(model_dir, "metrics.jsonl")
    assert max(found) == 24
    for step in found.keys() & expected.keys():
        assert found[step] == pytest.approx(expected[step], rel=1e-5)
    (best,) = (model_dir / "best").glob("step_*")
    assert reading.is_whole(best)
    assert int(best.name.removeprefix("step_")) == min(found, key=found.get)


@pytest.mark.parametrize("point", ["import", "setup", "log"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_killed_evaluator_goes_on_without_repeating(runs, point, name):
    runs.train().must_end(0)
    runs.plan(f"evaluator {point} 0 {name}")
    environ = {"FAULTS_TASK": "evaluator"}
    flags = ("--mode=continuous_eval", *FLAGS)
    process = runs.train(*flags, environ=environ)
    number = signal.Signals[name]
    process.must_end(-number, 75)
    assert (runs.plan_dir / "done_0").exists()
    runs.train(*flags, environ=environ).must_end(0)
    must_agree(runs.model_dir)


@pytest.mark.parametrize(
    "line", ["evaluator_0 log 0 SIGKILL", "worker_0 writing 12 SIGKILL"]
)
def test_the_launcher_starts_either_again(runs, undisturbed, line):
    runs.plan(line)
    launcher = runs.launch(*LAUNCH, flags=FLAGS)
    launcher.must_end(0)
    assert line.split()[0].replace("_", " ") in launcher.log
    must_agree(runs.model_dir)
    reading.assert_equal(runs.model_dir, undisturbed(worker=1))


def test_a_frozen_evaluator_disturbs_nobody(runs, undisturbed):
    runs.plan("evaluator_0 log 0 SIGSTOP")
    launcher = runs.launch(*LAUNCH, flags=FLAGS)
    launcher.must_end(0)
    must_agree(runs.model_dir)
    reading.assert_equal(runs.model_dir, undisturbed(worker=1))


def test_a_checkpoint_that_is_damaged_is_passed_over(runs):
    runs.train().must_end(0)
    path = reading.checkpoints(runs.model_dir)[24]
    (path / "state.json").write_text("{}")
    flags = ("--mode=continuous_eval", *FLAGS)
    process = runs.train(*flags, "--gin.run.eval_timeout='2s'")
    process.must_end(0, 2)
    assert "Traceback" not in process.log
    found = evaluations(runs.model_dir, "metrics_evaluator.jsonl")
    assert found.keys() <= {6, 12, 18}
