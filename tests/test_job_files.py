"""The sbatch file and the manifest of the pages do what these say."""

import os
import shutil
import subprocess

import pytest

from tests.conftest import ROOT
from tests.test_docs import files_of
from trainer.strategy.cluster.resolve import resolve_cluster

SCALE = ROOT / "docs" / "scale"
# Of programs that the batch script calls.
STAND_IN = '#!/bin/sh\necho "$0 $*" >> "$CALLS"\nexit "${CODE:-0}"\n'


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "digits.sbatch"
    path.write_text(files_of([SCALE / "slurm.md"])[path.name])
    return path


def test_the_batch_script_has_no_mistake_that_shellcheck_knows(script):
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("needs ShellCheck")
    # It does not follow the environment's own script.
    done = subprocess.run(
        [checker, "--exclude=SC1091", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("code", [0, 2, 75])
def test_the_batch_script_requeues_what_is_to_start_again(
    script, tmp_path, code
):
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    calls = tmp_path / "calls"
    for name in ("srun", "scontrol"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "CALLS": str(calls),
        "CODE": str(code),
    }
    done = subprocess.run(["bash", script], env=environ)
    assert done.returncode == code
    started, *more = calls.read_text().splitlines()
    assert "--model_dir=/shared/runs/digits-17" in started
    assert [one.split()[1:] for one in more] == [["requeue", "17"]] * (
        code == 75
    )


@pytest.fixture
def objects():
    yaml = pytest.importorskip("yaml")
    text = files_of([SCALE / "kubernetes.md"])["digits.yaml"]
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_each_pod_finds_the_cluster(objects, monkeypatch):
    job, service = objects["Job"], objects["Service"]
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    count = job["spec"]["completions"]
    name = job["metadata"]["name"]
    for number in range(count):
        cluster = resolve_cluster(
            environ={
                **environ,
                "KUBERNETES_SERVICE_HOST": "10.96.0.1",
                "HOSTNAME": f"{name}-{number}",
                "JOB_COMPLETION_INDEX": str(number),
            }
        )
        assert cluster.index == number
        # A pod is known as its host name below its subdomain.
        domain = template["spec"]["subdomain"]
        addresses = [f"{name}-{one}.{domain}:2222" for one in range(count)]
        assert cluster.jobs == {"worker": addresses}
    assert service["metadata"]["name"] == domain
    assert service["spec"]["clusterIP"] == "None"
    # Tasks look for each other before any of them is ready.
    assert service["spec"]["publishNotReadyAddresses"]
    assert job["spec"]["parallelism"] == count


def test_pods_are_selected_and_restarted(objects):
    job = objects["Job"]["spec"]
    labels = job["template"]["metadata"]["labels"]
    policy = objects["NetworkPolicy"]["spec"]
    assert objects["Service"]["spec"]["selector"] == labels
    assert policy["podSelector"]["matchLabels"] == labels
    (rule,) = policy["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"] == labels
    rules = job["podFailurePolicy"]["rules"]
    by_code = {
        code: one["action"]
        for one in rules
        for code in one.get("onExitCodes", {}).get("values", ())
    }
    assert by_code == {2: "FailJob", 75: "Ignore"}
    # A pod failure policy asks for it.
    assert job["template"]["spec"]["restartPolicy"] == "Never"
