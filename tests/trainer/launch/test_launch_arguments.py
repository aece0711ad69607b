"""The command line of the launcher."""

import json
import os

import pytest

from trainer import UserError
from trainer.cli import flags as trainer_flags
from trainer.launch import arguments
from trainer.launch.main import cluster_environ

GIN = "--gin_file=experiments/digits.gin"
RUN = (GIN, "--model_dir=run")
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "TRAINER_NUM_WORKERS": "4",
    "TRAINER_SERVICE": "digits",
    "HOSTNAME": "digits-2",
}
PAIR = {"worker": ["a:1", "b:1"]}


def tf_config(task, cluster=PAIR):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


WORKER = tf_config({"type": "worker", "index": 1})


def test_each_task_learns_its_place_and_the_coordinators():
    counts = {"chief": 1, "worker": 1, "ps": 2, "evaluator": 1}
    tasks = list(cluster_environ(counts, range(9, 20)))
    names = ["chief 0", "worker 0", "ps 0", "ps 1", "evaluator 0"]
    assert [f"{job} {index}" for job, index, _ in tasks] == names
    for job, index, environ in tasks:
        assert json.loads(environ["TF_CONFIG"]) == {
            "cluster": {
                "chief": ["127.0.0.1:10"],
                "worker": ["127.0.0.1:11"],
                "ps": ["127.0.0.1:12", "127.0.0.1:13"],
            },
            "task": {"type": job, "index": index},
        }
        assert environ["TRAINER_COORDINATOR_PORT"] == "9"
    (secret,) = {own["TRAINER_COORDINATOR_SECRET"] for *_, own in tasks}
    assert len(bytes.fromhex(secret)) == 16
    *_, other = next(cluster_environ({"worker": 1}, range(9, 11)))
    assert secret != other["TRAINER_COORDINATOR_SECRET"]


def test_a_missing_model_dir_is_added_for_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = arguments.parse(["--num_workers=3", "--", GIN])
    assert (found.flags.num_workers, found.flags.num_ps) == (3, 0)
    model_dir = trainer_flags.parse(found.arguments).model_dir
    assert os.path.dirname(model_dir) == os.path.join("runs", "digits")
    assert found.log_dir == os.path.join(model_dir, "logs")
    os.makedirs(model_dir)
    again = arguments.parse(["--", GIN])
    assert again.arguments != found.arguments


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--num_workers=0"], ["--num_workers=0: must be", "number >= 1"]),
        (["--num_workers=two"], ["two", "a whole number"]),
        (["--max_restarts"], ["--max_restarts", "Missing value"]),
        (["--min_workers=1", "--num_ps=1"], ["without parameter servers"]),
        (["--max_restart=1"], ["'--max_restarts'"]),
        (["x"], ["'x'", "--"]),
        (["--", "--model_dir=x"], ["--gin_file"]),
        (["--", "--strategy=help"], ["python -m trainer --strategy=help"]),
    ],
)
def test_mistakes_are_one_sentence(given, parts):
    given = given if "--" in given else [*given, "--", *RUN]
    with pytest.raises(UserError) as error:
        arguments.parse(given, {})
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize(
    ("behind", "environ", "task"),
    [
        ([], {}, None),
        (
            [],
            tf_config({"type": "chief"}, PAIR | {"chief": ["c:1"]}),
            ("chief", 0),
        ),
        ([], {"TF_CONFIG": "{}"}, None),
        # Ranks without a job.
        ([], SLURM, ("task", 3)),
        ([], SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ([], POD, ("task", 2)),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        (
            ["--worker_hosts=a:1,b:1", "--ps_hosts=c:1", "--task_type=ps"]
            + ["--task_index=0"],
            WORKER,
            ("ps", 0),
        ),
    ],
)
def test_the_task_is_found_where_the_trainer_finds_it(behind, environ, task):
    given = ["--max_restarts=5", "--", *RUN, *behind]
    found = arguments.parse(given, environ)
    assert found.task == task
    assert found.arguments == (*RUN, *behind)
    assert trainer_flags.parse(found.arguments).model_dir == "run"
