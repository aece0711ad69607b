"""Real launches of real programs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.trainer.launch.launching import (
    AWAIT,
    DRIVER,
    LIFE,
    finish,
    is_gone,
    lives,
    pid_of,
)

GIN = "--gin_file=experiments/digits.gin"
CHILD = """
import subprocess
train(0)
signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(f"child pid={child.pid} ", flush=True)
"""


def test_a_killed_worker_is_restarted_alone(launch):
    """Also checks the output, the logs and SIGUSR1 of a successful launch."""
    one = launch(
        ("chief", 0, LIFE + "print('b', file=sys.stderr)\n" + AWAIT),
        ("worker", 1, LIFE + CHILD + AWAIT),
        max_restarts=3,
    )
    # The chief's output is shown while it runs.
    shown = [one.process.stdout.readline() for _ in range(2)]
    assert shown[0].startswith("life=1 pid=")
    assert shown[1] == "b\n"
    one.wait_for("worker_1", "child")
    _, task, child = one.log("worker_1").split("pid=")
    # The chief does not train yet, and SIGUSR1 would kill it; also the child.
    one.process.send_signal(signal.SIGUSR1)
    one.wait_for("worker_1", "saved")
    assert os.path.exists(f"/proc/{int(child.split()[0])}")
    os.kill(int(task.split()[0]), signal.SIGKILL)
    one.wait_for("worker_1", "life=2")
    # The children of a process end with it.
    assert is_gone(int(child.split()[0]))
    code, out, err = finish(one)
    assert code == 0
    assert err == (
        "worker 1 was killed by SIGKILL. Restarting it (restart 1 of at "
        "most 3 an hour).\n"
    )
    assert out == ""
    assert (lives(one, "chief_0"), lives(one, "worker_1")) == (1, 2)
    assert one.log("chief_0") == "".join(shown)
    last_child = one.log("worker_1").split("child pid=")[-1]
    assert is_gone(int(last_child.split()[0]))


def test_kills_of_a_worker_without_a_step_while_the_run_gets_on(launch):
    """As under parameter servers, where only the chief knows the step."""
    killed = LIFE + (
        "saved = f'{os.path.dirname(path)}/checkpoints/step_{life:08d}'\n"
        "if life < 6:\n"
        "    os.makedirs(saved)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "open(os.path.dirname(path) + '/end', 'w').close()\n"
    )
    one = launch(
        ("chief", 0, LIFE + AWAIT), ("worker", 0, killed), max_restarts=1
    )
    code, _, err = one.result()
    assert code == 0
    assert err.count("(restart 1 of at most 1 an hour)") == 1
    assert err.count("which does not count") == 4
    assert " in " not in err


def test_a_killed_worker_restarts_its_peers(launch):
    """One that trains leaves by itself; one that does not is terminated."""
    leaves = LIFE + (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if life == 1:\n"
        "    train(4)\n"
        "    while not os.path.exists(os.path.dirname(path) + '/leave'):\n"
        "        time.sleep(0.02)\n"
        "    sys.exit(75)\n"
    )
    one = launch(
        ("worker", 0, leaves + AWAIT),
        ("worker", 1, LIFE + AWAIT),
        ("worker", 2, LIFE + AWAIT),
        max_restarts=1,
    )
    one.wait_for("worker_0", "trains")
    for name in ("worker_1", "worker_2"):
        one.wait_for(name, "life=1")
    os.kill(pid_of(one.log("worker_1")), signal.SIGKILL)
    assert is_gone(pid_of(one.log("worker_2")))
    time.sleep(0.5)
    assert lives(one, "worker_1") == lives(one, "worker_2") == 1
    (one.logs / "leave").touch()
    for name in ("worker_0", "worker_1", "worker_2"):
        one.wait_for(name, "life=2")
    code, _, err = finish(one)
    assert code == 0
    assert err == (
        "worker 1 was killed by SIGKILL. Restarting it with its peers "
        "(restart 1 of at most 1 an hour).\n"
    )


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">/dev/full 2>&1"])
def test_a_terminal_that_is_gone_does_not_stop_the_run(tmp_path, redirection):
    """Nor does a log folder that is."""
    flag = tmp_path / "flag"
    program = (
        "import os, pathlib, shutil, sys\n"
        "print('here')\n"
        f"if not os.path.exists({str(flag)!r}):\n"
        f"    pathlib.Path({str(flag)!r}).touch()\n"
        f"    shutil.rmtree({str(tmp_path / 'logs')!r})\n"
        "    sys.exit(75)\n"
    )
    given = {
        "tasks": [("worker", 0, program)],
        "log_dir": str(tmp_path / "logs"),
        "limits": {"max_restarts": 1},
    }
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh"]
        + [sys.executable, str(DRIVER), json.dumps(given)],
        timeout=60,
    )
    assert done.returncode == 0
    assert (tmp_path / "logs" / "worker_0.log").read_text() == "here\n"


def test_launch_answers_without_tensorflow(plain_starts):
    program = (
        "import sys\n"
        "from trainer.launch.main import main\n"
        "assert main(['--help']) == 0\n"
        f"assert main(['--num_workers=0', '--', {GIN!r}]) == 2\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1


def test_on_its_own_host_a_task_keeps_its_index(tmp_path):
    """With one launcher per host, only that host's task is started."""
    config = json.dumps(
        {
            "cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
            "task": {"type": "worker", "index": 1},
        }
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch", "--max_restarts=5"),
            *("--", "--gin_file=none.gin", f"--model_dir={tmp_path}"),
        ],
        cwd=ROOT,
        env={**os.environ, "TF_CONFIG": config},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "none.gin" in done.stdout
    assert done.stderr.startswith("worker 1 failed (exit code 2)")
    assert os.listdir(tmp_path / "logs") == ["worker_1.log"]


def test_the_rest_is_ended_once_the_chief_is_done_but_an_evaluator(launch):
    one = launch(
        ("chief", 0, LIFE + "time.sleep(1)"),
        ("worker", 0, LIFE + "time.sleep(60)"),
        # It is not restarted any more.
        ("worker", 1, LIFE + "time.sleep(2); sys.exit(3)"),
        # This one is, and may take its time.
        (
            "evaluator",
            0,
            LIFE
            + "time.sleep(2 * life)\nif life == 1: os.kill(os.getpid(), 9)",
        ),
        max_restarts=3,
        finish_seconds=2.0,
    )
    code, _, err = one.result()
    assert code == 0, err
    assert (
        "worker 0 is still running after the end of the run: stopping it."
        in err
    )
    assert "evaluator 0 was killed by SIGKILL. Restarting it (" in err
    assert lives(one, "worker_1") == 1


@pytest.mark.parametrize("text", ["", "fail('no', 4)"])
def test_a_record_that_says_done_ends_a_task_without_peers(launch, text):
    """The chief runs on another host; but an error is an error."""
    over = "open(os.path.join(os.path.dirname(path), 'over'), 'w')\n"
    program = f"if life == 1: sys.exit(75)\n{over}{text}\nsys.exit(75)"
    one = launch(("worker", 1, LIFE + program), max_restarts=3)
    assert one.result()[0] == (1 if text else 0)
    assert lives(one, "worker_1") == 2
