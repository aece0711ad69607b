"""Kills under `python -m trainer.launch`, which starts again what died."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.chaos import monkey
from tests.conftest import ROOT
from tests.helpers import lines
from trainer import checkpoints

_SECONDS = 900.0


class Launched:
    """A run of several processes under the launcher."""

    def __init__(self, folder, launcher, flags):
        self.model_dir = folder / "run"
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "trainer.launch", *launcher),
                    *("--", *flags, f"--model_dir={self.model_dir}"),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        return self._log.read_text()[-6000:]

    def find(self, job, index):
        """The process of a task; `None` while there is none."""
        place = {"type": job, "index": index}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"--model_dir={self.model_dir}".encode() not in command:
                continue
            for line in environ:
                name, _, value = line.partition(b"=")
                if name == b"TF_CONFIG" and json.loads(value)["task"] == place:
                    return int(entry.name)
        return None

    def kill(self, job, index, number=signal.SIGKILL):
        pid = self.find(job, index)
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def newest_step(self):
        found = checkpoints.listing(str(self.model_dir / "checkpoints"))
        return checkpoints.step_of(found[-1]) if found else 0

    def wait_for_step(self, step):
        deadline = time.monotonic() + _SECONDS
        while self.newest_step() < step:
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.05)

    def end(self):
        return self.process.wait(_SECONDS)


@pytest.fixture
def launch(tmp_path):
    made = []

    def start(*launcher, flags, folder="launched"):
        (tmp_path / folder).mkdir()
        made.append(Launched(tmp_path / folder, launcher, flags))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def evaluation(model_dir):
    return [one for one in lines(model_dir) if one["split"] == "eval"][-1]


@pytest.mark.long
def test_two_workers_survive_kills_byte_by_byte(launch):
    """The launcher alone brings the run to its end."""
    pytest.importorskip("sklearn")
    flags = (f"--gin_file={ROOT}/tests/chaos/chaos.gin",)
    launcher = ("--num_workers=2", "--max_restarts=20")
    whole = launch(*launcher, flags=flags, folder="whole")
    assert whole.end() == 0, whole.log
    run = launch(*launcher, flags=flags)
    chance = random.Random(2)
    for step in (20, 90, 160):
        run.wait_for_step(step)
        time.sleep(chance.uniform(0.0, 1.0))
        number = chance.choice([signal.SIGKILL, signal.SIGTERM])
        assert run.kill("worker", chance.randrange(2), number)
    assert run.end() == 0, run.log
    monkey.compare(run.model_dir, whole.model_dir)


@pytest.mark.long
def test_parameter_servers_survive_kills(launch):
    """Four workers, one killed every few seconds; a server killed once."""
    pytest.importorskip("sklearn")
    steps = 1500
    flags = (
        f"--gin_file={ROOT}/experiments/digits.gin",
        f"--train_steps={steps}",
        "--learning_rate=0.001",
        "--gin.Checkpoint.every=100",
        "--gin.run.eval_every=500",
    )
    one = launch(
        "--num_workers=1", flags=(*flags, "--strategy=default"), folder="one"
    )
    assert one.end() == 0, one.log
    run = launch(
        *("--num_workers=4", "--num_ps=2"),
        # Many kills are the point here: no long back-off.
        *("--max_restarts=200", "--restart_window=30"),
        flags=flags,
    )
    chance = random.Random(3)
    run.wait_for_step(100)
    killed, ps_is_due = 0, True
    while run.process.poll() is None:
        if ps_is_due and run.newest_step() >= steps // 3:
            ps_is_due = not run.kill("ps", 1)
        else:
            killed += run.kill("worker", chance.randrange(4))
        time.sleep(chance.uniform(4.0, 8.0))
    print(f"{killed} workers and 1 server killed")
    assert run.process.returncode == 0, run.log
    assert not ps_is_due
    assert killed >= 5
    snapshot = checkpoints.load_newest(str(run.model_dir / "checkpoints"))
    assert snapshot.step == steps
    assert int(snapshot.arrays["step/0000"]) == steps
    names = [
        v["path"] for v in snapshot.host["variables"]["optimizer/optimizer"]
    ]
    iterations = next(i for i, n in enumerate(names) if "iteration" in n)
    key = f"optimizer/optimizer/{iterations:04d}"
    assert int(snapshot.arrays[key]) == steps
    expected = evaluation(one.model_dir)["accuracy"]
    assert evaluation(run.model_dir)["accuracy"] >= expected - 0.005


def test_sigterm_to_every_task_of_parameter_servers_saves_once(launch):
    """What a cluster's manager does: all get the signal in one moment."""
    pytest.importorskip("sklearn")
    flags = (
        f"--gin_file={ROOT}/experiments/digits.gin",
        "--train_steps=1000000",
        "--gin.Checkpoint.every=1000000",
        "--gin.run.eval_every=1000000",
        "--gin.run.steps_per_loop=20",
        "--gin.run.log_every=20",
    )
    run = launch("--num_workers=2", "--num_ps=1", flags=flags)
    metrics = run.model_dir / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not metrics.exists():
        assert time.monotonic() < deadline, run.log
        time.sleep(0.1)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 75, run.log
    (path,) = checkpoints.listing(str(run.model_dir / "checkpoints"))
    assert checkpoints.load(path).host["loop"]["unfired_from"] is not None
    record = json.loads((run.model_dir / "run.json").read_text())
    assert record["exit_reason"] == "start_again"
    assert record["accounts"]["step"] > 0
