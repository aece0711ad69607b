"""Who is needed, who may be away, and what reaches the tasks."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.trainer.launching import AWAIT, LIFE, finish, lives


def test_a_peer_that_is_done_meets_the_one_that_comes_back(launch):
    one = launch(
        ("worker", 0, LIFE + "if life == 1: time.sleep(1); kill()\n" + AWAIT),
        ("worker", 1, LIFE),
        max_restarts=3,
    )
    for name in ("worker_0", "worker_1"):
        one.wait_for(name, "life=2")
    assert finish(one)[0] == 0


def test_after_the_chiefs_good_end_nobody_is_started_again(launch):
    one = launch(
        ("worker", 0, LIFE),
        ("worker", 1, LIFE + "time.sleep(0.7); kill()"),
        max_restarts=3,
    )
    assert one.result()[0] == 0
    assert lives(one, "worker_1") == 1


def test_the_chiefs_good_end_ends_the_wait_for_a_restart(launch):
    """The chief ends while the other one waits for four seconds."""
    chief = LIFE + (
        "other = path.replace('worker_0', 'worker_1')\n"
        "while not os.path.exists(other) or os.path.getsize(other) < 4:\n"
        "    time.sleep(0.02)\n"
        "time.sleep(1)\n"
    )
    one = launch(
        ("worker", 0, chief), ("worker", 1, LIFE + "kill()"), max_restarts=9
    )
    assert one.result()[0] == 0
    assert lives(one, "worker_1") == 4


def test_an_evaluator_is_started_again_after_the_chiefs_end(launch):
    program = LIFE + "time.sleep(0.5)\nif life == 1: kill()"
    one = launch(("worker", 0, ""), ("evaluator", 0, program), max_restarts=1)
    assert one.result()[0] == 0
    assert lives(one, "evaluator_0") == 2


def test_one_worker_may_be_left_out(launch):
    one = launch(
        ("worker", 0, LIFE + "kill()"),
        ("worker", 1, LIFE + AWAIT),
        max_restarts=1,
        min_workers=1,
    )
    deadline = time.monotonic() + 30
    while lives(one, "worker_0") < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    code, out, err = finish(one)
    assert code == 0, err
    assert "The others go on without it: --min_workers=1." in err
    assert "Left out: worker 0." in out


@pytest.mark.parametrize(
    ("program", "min_workers", "expected"),
    [("kill()", 2, 137), ("fail('no', 40)", 1, 1)],
)
def test_not_without_enough_others_and_not_with_a_defect(
    launch, program, min_workers, expected
):
    one = launch(
        ("worker", 0, LIFE + AWAIT),
        ("worker", 1, LIFE + program),
        max_restarts=1,
        min_workers=min_workers,
    )
    assert one.result()[0] == expected


def test_sigusr1_reaches_those_that_can_take_it(launch):
    """One that has no handler yet would die of it."""
    listening = LIFE + (
        "import subprocess\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'])\n"
        "print('ready', flush=True)\n" + AWAIT + "assert child.poll() is None\n"
    )
    one = launch(
        ("worker", 0, LIFE + AWAIT), ("worker", 1, listening), max_restarts=0
    )
    one.wait_for("worker_0", "life=1")
    one.wait_for("worker_1", "ready")
    one.process.send_signal(signal.SIGUSR1)
    one.wait_for("worker_1", "saved")
    assert finish(one)[0] == 0


def test_what_cannot_be_started_is_tried_again(launch, tmp_path):
    (tmp_path / "logs" / "worker_1.log").mkdir(parents=True)
    one = launch(
        ("worker", 0, LIFE + AWAIT), ("worker", 1, LIFE), max_restarts=1
    )
    code, _, err = one.result()
    assert code == 1
    assert "worker 1 could not be started: [Errno 21]" in err


def test_on_a_host_of_its_own_a_task_keeps_its_place(tmp_path):
    """One launcher on each host: nothing but the task is started here."""
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
    assert done.stderr.startswith("worker 1 failed with exit code 2. Its log")
    assert os.listdir(tmp_path / "logs") == ["worker_1.log"]
