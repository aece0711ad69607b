import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.trainer.launching import is_gone, pid_of
from trainer.cli import flags as trainer_flags
from trainer.errors import UserError
from trainer.launcher import arguments
from trainer.launcher.tasks import count_ports, held_ports, make_tasks

SLEEP = "import time; print('here', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP
GIN = "--gin_file=experiments/digits.gin"


PID = "import os; print(f'pid={os.getpid()} ', flush=True);"


def test_the_chief_is_shown_and_all_are_logged(launch):
    one = launch(
        ("worker", 0, "import sys; print('a'); print('b', file=sys.stderr)"),
        ("worker", 1, "print('c')"),
    )
    code, out, err = one.result()
    assert (code, err) == (0, "")
    assert sorted(out.split()) == ["a", "b"]
    assert sorted(one.log("worker_0").split()) == ["a", "b"]
    assert one.log("worker_1") == "c\n"


def test_the_chief_is_shown_while_it_runs(launch):
    one = launch(("worker", 0, SLEEP))
    assert one.process.stdout.readline() == "here\n"
    assert one.process.poll() is None
    one.process.send_signal(signal.SIGINT)
    assert one.result()[0] == 130


def test_the_first_failure_ends_all_and_is_told(launch):
    program = "import sys; print('the reason'); sys.exit(3)"
    one = launch(
        ("worker", 0, PID + SLEEP),
        ("worker", 1, "import time; time.sleep(0.7);" + program),
        ("evaluator", 0, PID + SLEEP),
    )
    code, _, err = one.result()
    assert code == 3
    assert err.startswith("worker 1 failed with exit code 3. The end of ")
    assert "  the reason\n" in err
    assert one.seconds < 8
    assert is_gone(pid_of(one.log("worker_0")))
    assert is_gone(pid_of(one.log("evaluator_0")))


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("import sys; sys.exit(75)", 75, "asks to be started again"),
        ("import sys; sys.exit(2)", 2, "exit code 2"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", 139, "SIGSEGV"),
    ],
)
def test_the_exit_code_is_that_of_the_failure(launch, program, code, told):
    one = launch(("worker", 0, SLEEP), ("worker", 1, program))
    result = one.result()
    assert result[0] == code
    assert told in result[2]


def test_a_lost_peer_is_not_blamed_for_another_ones_failure(launch):
    one = launch(
        ("worker", 0, "import sys; sys.exit(75)"),
        ("worker", 1, "import sys, time; time.sleep(0.5); sys.exit(1)"),
    )
    code, _, err = one.result()
    assert code == 1
    assert err.startswith("worker 1 failed")


def test_what_ignores_sigterm_is_killed_after_a_while(launch):
    one = launch(("worker", 0, PID + DEAF), end_seconds=1)
    one.wait_for("worker_0", "here")
    one.process.send_signal(signal.SIGTERM)
    code, _, err = one.result()
    assert code == 143
    assert "SIGTERM" in err
    assert is_gone(pid_of(one.log("worker_0")))
    assert 1 < one.seconds < 10


def test_a_second_ctrl_c_waits_no_longer(launch):
    stubborn = "import signal; signal.signal(2, signal.SIG_IGN);" + PID + SLEEP
    one = launch(("worker", 0, stubborn), end_seconds=25)
    one.wait_for("worker_0", "here")
    one.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert one.process.poll() is None
    one.process.send_signal(signal.SIGINT)
    assert one.result()[0] == 130
    assert one.seconds < 15
    assert is_gone(pid_of(one.log("worker_0")))


def test_sigterm_is_passed_on_and_saved_state_is_told(launch):
    saving = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.3)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('here', flush=True)\n"
        "time.sleep(60)\n"
    )
    one = launch(("worker", 0, saving), ("worker", 1, saving), end_seconds=20)
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "here")
    one.process.send_signal(signal.SIGTERM)
    code, out, _ = one.result()
    assert code == 75
    assert out == "here\nsaved\n"
    assert one.log("worker_1") == "here\nsaved\n"


def test_a_killed_launcher_leaves_no_orphan(launch):
    one = launch(("worker", 0, PID + DEAF), ("ps", 0, PID + DEAF))
    for name in ("worker_0", "ps_0"):
        one.wait_for(name, "here")
    pids = [pid_of(one.log(name)) for name in ("worker_0", "ps_0")]
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    one.process.kill()
    one.process.wait()
    assert all(is_gone(pid) for pid in pids)


def test_what_a_process_has_started_ends_with_it(launch):
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'])\n"
        "print(f'pid={child.pid} ')\n"
    )
    one = launch(("worker", 0, parent))
    assert one.result()[0] == 0
    assert is_gone(pid_of(one.log("worker_0")))


def test_servers_are_ended_when_the_chief_is_done(launch):
    one = launch(
        ("chief", 0, "import time; time.sleep(0.5)"),
        ("worker", 0, PID + SLEEP),
        ("worker", 1, "import sys, time; time.sleep(0.9); sys.exit(75)"),
        ("ps", 0, PID + SLEEP),
        leave_seconds={"server": 1.0, "evaluator": 5.0},
    )
    code, _, err = one.result()
    assert (code, err) == (0, "")
    assert is_gone(pid_of(one.log("worker_0")))
    assert is_gone(pid_of(one.log("ps_0")))


def test_servers_and_evaluator_may_finish_by_themselves(launch):
    last = "import time; time.sleep(1); print('done')"
    one = launch(
        ("chief", 0, ""),
        ("worker", 0, last),
        ("evaluator", 0, last),
        leave_seconds={"server": 10.0, "evaluator": 10.0},
    )
    assert one.result()[0] == 0
    assert one.log("worker_0") == one.log("evaluator_0") == "done\n"
    assert one.seconds < 8


def test_an_evaluators_failure_counts_after_the_chief_too(launch):
    one = launch(
        ("chief", 0, ""),
        ("evaluator", 0, "import sys, time; time.sleep(0.6); sys.exit(4)"),
    )
    assert one.result()[0] == 4


def test_a_worker_that_never_ends_is_named(launch):
    one = launch(
        ("worker", 0, ""),
        ("worker", 1, SLEEP),
        leave_seconds={"worker": 0.5},
    )
    code, _, err = one.result()
    assert code == 1
    assert err.startswith("worker 1 went on too long")


def test_a_reader_that_goes_away_does_not_stop_the_run(launch):
    chatty = (
        "import time\n"
        "for i in range(10): print(i, flush=True); time.sleep(0.1)\n"
    )
    one = launch(("worker", 0, chatty))
    assert one.process.stdout.readline() == "0\n"
    one.process.stdout.close()
    assert one.process.wait(timeout=20) == 0
    assert one.process.stderr.read() == ""
    assert one.log("worker_0").split()[-1] == "9"


def places(**given):
    counts = {"num_workers": 2, "num_ps": 0, "evaluator": False} | given
    total = count_ports(counts["num_workers"], counts["num_ps"])
    tasks = make_tasks(["x"], ports=range(1, total + 1), **counts)
    return [
        (task.name, task.log_name, json.loads(task.environ["TF_CONFIG"]))
        for task in tasks
    ]


def test_workers_alone_have_no_chief():
    found = places()
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
    found = places(num_ps=2, num_workers=1, evaluator=True)
    names = ["chief 0", "worker 0", "ps 0", "ps 1", "evaluator 0"]
    assert [name for name, _, _ in found] == names
    for _, _, config in found:
        assert config["cluster"] == {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2"],
            "ps": ["127.0.0.1:3", "127.0.0.1:4"],
        }


def test_held_ports_are_lent_to_nobody_but_can_be_listened_on():
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
    ("given", "code"),
    [
        (["--help"], 0),
        (["--num_workers=0", "--", GIN], 2),
        (["--log_dir=/dev/null/x", "--", GIN], 2),
    ],
)
def test_launch_answers_without_tensorflow(given, code):
    program = (
        "import sys; from trainer.launch import main; "
        f"code = main({given!r}); "
        "assert not {'tensorflow', 'keras'} & set(sys.modules); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_every_process_of_a_launch_runs_the_trainer(tmp_path):
    """The mistake is found by each process, and is the launcher's too."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch", "--num_workers=2"),
            *("--", "--gin_file=none.gin", f"--model_dir={tmp_path}"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "none.gin" in done.stdout + done.stderr
    assert "failed with exit code 2" in done.stderr
    assert sorted(os.listdir(tmp_path / "logs")) == [
        "worker_0.log",
        "worker_1.log",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        (["--num_workers=2"], "multi_worker_mirrored"),
        (["--num_workers=1", "--num_ps=1"], "parameter_server"),
    ],
)
def test_a_real_cluster_trains(root, tmp_path, flags, strategy):
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch", *flags, "--"),
            *("--gin_file=experiments/digits.gin", "--train_steps=20"),
            f"--model_dir={tmp_path}",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["strategy"], record["exit_reason"]) == (strategy, "done")
    assert record["cluster"]["cluster"]["source"] == "TF_CONFIG"
