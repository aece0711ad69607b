"""The command line of the launcher."""

import json
import os
import socket

import pytest

from trainer.cli import flags as trainer_flags
from trainer.errors import UserError
from trainer.launch import arguments
from trainer.launch.task_spec import count_ports, held_ports, make_tasks

GIN = "--gin_file=experiments/digits.gin"


def task_ids(**given):
    counts = {"num_workers": 2, "num_ps": 0, "evaluator": False} | given
    total = count_ports(counts["num_workers"], counts["num_ps"])
    tasks = make_tasks(["x"], ports=range(1, total + 1), **counts)
    return [
        (task.name, task.log_name, json.loads(task.environ["TF_CONFIG"]))
        for task in tasks
    ]


def test_workers_alone_have_no_chief():
    found = task_ids()
    assert [name for name, _, _ in found] == ["worker 0", "worker 1"]
    assert found[1] == (
        "worker 1",
        "worker_1.log",
        {
            "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
            "task": {"type": "worker", "index": 1},
        },
    )


def test_with_parameter_servers_the_chief_comes_first():
    found = task_ids(num_ps=2, num_workers=1, evaluator=True)
    names = ["chief 0", "worker 0", "ps 0", "ps 1", "evaluator 0"]
    assert [name for name, _, _ in found] == names
    for _, _, config in found:
        assert config["cluster"] == {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": ["127.0.0.1:3", "127.0.0.1:4"],
        }


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
    assert (found.num_workers, found.num_ps) == (3, 0)
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
        (["--num_workers=0", "--", GIN], ["--num_workers=0", "at least 1"]),
        (["--num_ps=-1", "--", GIN], ["--num_ps=-1", "at least 0"]),
        (["--num_workers=two", "--", GIN], ["two", "an integer"]),
        (["--restart_window=x", "--", GIN], ["=x: must be a number."]),
        (["--evaluator=2", "--", GIN], ["=2: must be true or false."]),
        (["--num_worker=2", "--", GIN], ["'--num_workers'"]),
        ([GIN], ["-- --gin_file"]),
        (["x", "--", GIN], ["'x'", "--"]),
        (["--", GIN, "--train_step=3"], ["'--train_steps'"]),
        ([], ["--gin_file"]),
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
            {"TF_CONFIG": json.dumps(task_ids(num_workers=2)[1][2])},
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
