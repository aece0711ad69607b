"""Real signals, and a real HTTP server that says what Google Cloud's says."""

import json
import re
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.helpers import saved_steps
from trainer import Trainer
from trainer_plugins import Preemption

_SECONDS = 120


class Endless:
    """A run that ends only when it is asked to."""

    def __init__(self, directory, **options):
        self.model_dir = directory / "run"
        self._log = directory / "log"
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.plugins.callbacks.endless_script",
                    str(self.model_dir),
                    json.dumps(options),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self):
        return self._log.read_text()

    @property
    def step(self):
        steps = re.findall(r"^step (\d+)$", self.log, re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def wait_for(self, condition):
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            assert self.process.poll() is None, self.log[-3000:]
            time.sleep(0.02)
        return self

    def wait_for_step(self, step):
        return self.wait_for(lambda: self.step >= step)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        return self.process.wait(_SECONDS)

    def saved_steps(self):
        return saved_steps(self.model_dir)


@pytest.fixture
def endless(tmp_path):
    made = []

    def make(**options):
        made.append(Endless(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(
    ("number", "slow"),
    [
        (signal.SIGTERM, {"save_seconds": 3.0}),
        pytest.param(signal.SIGINT, {"pause": 3.0}, marks=pytest.mark.long),
    ],
)
def test_the_grace_ends_neither_a_save_nor_who_can_press_again(
    endless, number, slow
):
    run = endless(
        checkpoint={"every": 10**9}, preemption={"grace_seconds": 2.0}, **slow
    )
    run.wait_for_step(10)
    run.signal(number)
    assert run.end() == 75
    assert "no step to save at was reached" not in run.log
    # A signal that comes at the end of a graph call is answered before the
    # callback that prints the step.
    (saved,) = run.saved_steps()
    assert 0 <= saved - run.step <= 10


def test_a_run_that_nobody_saves_is_told_so(caplog):
    x = np.ones((8, 2), "float32")
    made = Trainer(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        loss="mse",
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: (x, x[:, :1]),
        strategy="default",
    )
    made.train(1, callbacks=[Preemption()])
    assert "Add @Checkpoint() to run.callbacks" in caplog.text
