"""The command line of the launcher."""

import json
import os
import socket

import pytest

from trainer.cli import flags as trainer_flags
from trainer.errors import UserError
from trainer.launch import arguments
from trainer.launch.task_spec import count_tasks, held_ports, make_cluster

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


def make(**given):
    counts = {"num_workers": 2, "num_ps": 0, "evaluator": False} | given
    return make_cluster(["x"], count_tasks(**counts), range(9, 20), {"A": "b"})


def task_ids(**given):
    return [
        (task.name, json.loads(task.environ["TF_CONFIG"]))
        for task in make(**given)
    ]


def test_workers_alone_have_no_chief():
    found = task_ids()
    assert [name for name, _ in found] == ["worker 0", "worker 1"]
    assert found[1] == (
        "worker 1",
        {
            "cluster": {"worker": ["127.0.0.1:10", "127.0.0.1:11"]},
            "task": {"type": "worker", "index": 1},
        },
    )


def test_with_parameter_servers_the_chief_comes_first():
    found = task_ids(num_ps=2, num_workers=1, evaluator=True)
    names = ["chief 0", "worker 0", "ps 0", "ps 1", "evaluator 0"]
    assert [name for name, _ in found] == names
    for _, config in found:
        assert config["cluster"] == {
            "chief": ["127.0.0.1:10"],
            "worker": ["127.0.0.1:11"],
            "ps": ["127.0.0.1:12", "127.0.0.1:13"],
        }


def test_all_tasks_share_a_coordinator_and_a_secret():
    tasks = make(num_ps=1, evaluator=True)
    ports = {task.environ["TRAINER_COORDINATOR_PORT"] for task in tasks}
    assert ports == {"9"}
    assert all(task.environ["A"] == "b" for task in tasks)
    (secret,) = {task.environ["TRAINER_COORDINATOR_SECRET"] for task in tasks}
    assert len(bytes.fromhex(secret)) == 16
    assert secret not in repr(tasks)
    assert secret != make()[0].environ["TRAINER_COORDINATOR_SECRET"]


def test_reserved_ports_can_be_listened_on():
    with held_ports(50) as ports:
        assert len(set(ports)) == 50
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", ports[0]))
        with (
            socket.create_server(("127.0.0.1", ports[0])),
            socket.create_connection(("127.0.0.1", ports[0])),
        ):
            pass


def test_a_missing_model_dir_is_added_for_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = arguments.parse(["--num_workers=3", "--", GIN])
    assert (found.flags["num_workers"], found.flags["num_ps"]) == (3, 0)
    model_dir = trainer_flags.parse(found.arguments).model_dir
    assert os.path.dirname(model_dir) == os.path.join("runs", "digits")
    assert found.log_dir == os.path.join(model_dir, "logs")
    os.makedirs(model_dir)
    again = arguments.parse(["--", GIN])
    assert again.arguments != found.arguments


def test_a_given_model_dir_stays(tmp_path):
    given = [GIN, "--model_dir", str(tmp_path)]
    found = arguments.parse(["--log_dir=elsewhere", "--", *given])
    assert found.arguments == tuple(given)
    assert found.log_dir == "elsewhere"
    remote = arguments.parse(["--", GIN, "--model_dir=gs://bucket/run"])
    assert os.path.isdir(remote.log_dir)
    os.rmdir(remote.log_dir)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--num_workers=0", "--", GIN], ["--num_workers=0:", "at least 1."]),
        (["--num_ps=-1", "--", GIN], ["--num_ps=-1", "at least 0"]),
        (["--num_workers=two", "--", GIN], ["two", "an integer"]),
        (["--restart_window=x", "--", GIN], ["=x: must be a number above 0."]),
        (["--evaluator=2", "--", GIN], ["=2: must be true or false."]),
        (["--num_worker=2", "--", GIN], ["'--num_workers'"]),
        ([GIN], ["-- --gin_file"]),
        (["x", "--", GIN], ["'x'", "--"]),
        (["--", GIN, "--train_steps=x"], ["--train_steps=x"]),
        ([], ["--gin_file"]),
        (["--", "--helpfull"], ["python -m trainer --help"]),
        (["--", "--help", GIN], ["python -m trainer --help"]),
        (["--", "--strategy=help"], ["python -m trainer --strategy=help"]),
        (["--num_workers=1000000", "--", GIN], ["--num_workers=1000000"]),
    ],
)
def test_mistakes_of_launch_are_one_sentence(given, parts):
    with pytest.raises(UserError) as error:
        arguments.parse(given)
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        (
            ["--isolate", "--", GIN, "--model_dir=/tmp/x"],
            WORKER,
            "cluster on this machine",
        ),
        (
            ["--isolate", "--", GIN, "--model_dir=gs://bucket/x"],
            {},
            "gs://bucket/x",
        ),
        (["--isolate=perhaps", "--", GIN], {}, "true or false"),
    ],
)
def test_isolate_is_for_a_cluster_on_this_machine(given, environ, named):
    with pytest.raises(UserError, match=named) as error:
        arguments.parse(given, environ)
    assert "isolate" in str(error.value)


@pytest.mark.parametrize(
    ("behind", "environ", "task"),
    [
        ([], {}, None),
        ([], WORKER, ("worker", 1)),
        (
            [],
            tf_config({"type": "chief"}, PAIR | {"chief": ["c:1"]}),
            ("chief", 0),
        ),
        # A single process for which a cluster manager sets the variable.
        ([], tf_config({"type": "worker", "index": 0}, {}), ("task", 0)),
        ([], {"TF_CONFIG": "{}"}, None),
        ([], {"TF_CONFIG": " "}, None),
        # Ranks without a job.
        ([], SLURM, ("task", 3)),
        ([], SLURM | {"TRAINER_NUM_PS": "1"}, ("worker", 1)),
        ([], SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ([], SLURM | WORKER, ("worker", 1)),
        ([], POD, ("task", 2)),
        ([], POD | {"TRAINER_NUM_WORKERS": "1"}, ("task", 0)),
        ([], {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        (["--worker_hosts=a:1,b:1", "--task_index=1"], {}, ("worker", 1)),
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


@pytest.mark.parametrize(
    ("behind", "environ", "named"),
    [
        ([], {"TF_CONFIG": "{"}, "TF_CONFIG is not valid JSON"),
        ([], tf_config({"type": "worker", "index": 2}), "worker 2"),
        (["--task_index=1"], {}, "--worker_hosts"),
    ],
)
def test_a_cluster_that_contradicts_itself_is_refused(behind, environ, named):
    """Once here, not once in every process."""
    with pytest.raises(UserError, match=named):
        arguments.parse(["--", *RUN, *behind], environ)


@pytest.mark.parametrize(
    "flag", ["--num_workers=2", "--num_ps=1", "--evaluator"]
)
@pytest.mark.parametrize("environ", [WORKER, SLURM, {"TF_CONFIG": "{"}])
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
    assert found.flags["min_workers"] == 7
