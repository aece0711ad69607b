import json

import pytest

from trainer.cli import flags as trainer_flags
from trainer.errors import UserError
from trainer.launch import arguments

GIN = "--gin_file=experiments/digits.gin"
RUN = (GIN, "--model_dir=run")
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TRAINER_NUM_WORKERS": "4"}


def tf_config(task, **more):
    return {"TF_CONFIG": json.dumps({"cluster": {}, "task": task, **more})}


WORKER = tf_config({"type": "worker", "index": 1})


@pytest.mark.parametrize(
    ("behind", "environ", "task"),
    [
        ([], {}, None),
        ([], WORKER, ("worker", 1)),
        ([], tf_config({"type": "chief", "index": "0"}), ("chief", 0)),
        ([], tf_config({"type": "../x", "index": -1}), ("task", 0)),
        ([], tf_config(None), None),
        ([], {"TF_CONFIG": "{}"}, None),
        ([], {"TF_CONFIG": " "}, None),
        # The task itself reports what is wrong with it.
        ([], {"TF_CONFIG": "{"}, ("task", 0)),
        ([], SLURM, ("task", 3)),
        ([], SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ([], SLURM | WORKER, ("worker", 1)),
        ([], POD | {"HOSTNAME": "digits-2"}, ("task", 2)),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        (["--worker_hosts=a:1,b:1", "--task_index=1"], {}, ("worker", 1)),
        (
            ["--worker_hosts=a:1", "--task_type=ps", "--task_index=0"],
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


@pytest.mark.parametrize(
    "flag", ["--num_workers=2", "--num_ps=1", "--evaluator"]
)
@pytest.mark.parametrize("environ", [WORKER, SLURM])
def test_a_cluster_requested_on_this_machine_wins(flag, environ):
    assert arguments.parse([flag, "--", *RUN], environ).task is None


def test_a_cluster_here_and_one_elsewhere_contradict_each_other():
    with pytest.raises(UserError, match="--num_workers starts.*--task_index"):
        arguments.parse(["--num_workers=2", "--", *RUN, "--task_index=0"])


def test_the_tasks_of_several_hosts_need_one_directory():
    with pytest.raises(UserError, match="--model_dir is missing"):
        arguments.parse(["--", GIN], WORKER)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--min_workers=0"], ["--min_workers=0", "at least 1"]),
        (["--min_workers=3"], ["--min_workers=3", "1 to --num_workers=2"]),
        (["--min_workers=1", "--num_ps=1"], ["without parameter servers"]),
        (["--min_workers=1", "--max_restarts=0"], ["--max_restarts"]),
        (["--max_restarts=-1"], ["--max_restarts=-1", "at least 0"]),
        (["--restart_window=0"], ["--restart_window=0", "above 0"]),
        (["--restart_window=nan"], ["--restart_window=nan", "above 0"]),
        (["--restart_window=x"], ["--restart_window=x", "a number"]),
        (["--max_restart=1"], ["'--max_restarts'"]),
    ],
)
def test_mistakes_are_one_sentence(given, parts):
    with pytest.raises(UserError) as error:
        arguments.parse([*given, "--", *RUN], {})
    assert all(part in str(error.value) for part in parts), error.value


def test_min_workers_is_not_checked_against_other_hosts():
    found = arguments.parse(["--min_workers=7", "--", *RUN], WORKER)
    assert found.min_workers == 7
