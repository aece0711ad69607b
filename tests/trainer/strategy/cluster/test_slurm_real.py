import json
import sys
import tempfile

import pytest

from tests.trainer.strategy.cluster.real_slurm import RealSlurm, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@pytest.fixture(scope="module")
def slurm():
    # A socket's path may have 107 characters: pytest's folders are too deep.
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        RealSlurm(folder) as running,
    ):
        yield running


def test_two_tasks_train_together(slurm, root, tmp_path):
    pytest.importorskip("sklearn")
    done = slurm.srun(
        *("-n2", "-O", "--kill-on-bad-exit=1", f"--chdir={root}"),
        *(sys.executable, "-m", "trainer", "--train_steps=20"),
        *("--gin_file=experiments/digits.gin", f"--model_dir={tmp_path}"),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["exit_reason"] == "done"
    assert record["strategy"] == "multi_worker_mirrored"
    assert record["cluster"]["cluster"]["source"] == "Slurm"
    assert len(record["cluster"]["cluster"]["jobs"]["worker"]) == 2
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 20
