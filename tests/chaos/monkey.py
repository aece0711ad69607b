"""Kills a training run again and again, and compares what comes out of it."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np

from tests.conformance.running import Layout
from tests.conftest import ROOT
from tests.helpers import as_numpy, lines
from trainer import checkpoints

PHASES = ("start_up", "step", "save", "evaluation")
_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
# 75 asks to be started again; the others are the signals' own.
_EXPECTED = {75, -signal.SIGKILL, -signal.SIGTERM}
_START_SECONDS = 8.0  # About what a start takes.
_END_SECONDS = 90.0
_RUN_SECONDS = 300.0


@dataclasses.dataclass
class Kill:
    """One kill: where it was meant to hit, and what came of it."""

    phase: str
    number: int
    victim: int
    codes: tuple[int, ...] = ()


class Run:
    """The processes of one attempt to train.

    Args:
        layout: see `tests.conformance.running.Layout`.
        model_dir: where the run lives.
        arguments: more flags.
        gin_file: the experiment, below the checkout.
    """

    def __init__(
        self, layout, model_dir, *arguments, gin_file="tests/chaos/chaos.gin"
    ):
        self._directory = model_dir.parent
        self._processes = []
        command = [
            sys.executable,
            "-m",
            "trainer",
            f"--gin_file={ROOT}/{gin_file}",
            f"--model_dir={model_dir}",
            f"--strategy={layout.name}",
            *arguments,
        ]
        if layout.devices:
            command.append(f"--virtual_devices={layout.devices}")
        for number, environment in enumerate(layout.tasks()):
            self.phase_file(number).unlink(missing_ok=True)
            with open(self.log_file(number), "w") as log:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={
                            **os.environ,
                            **environment,
                            "PHASE_FILE": str(self.phase_file(number)),
                        },
                    )
                )

    def phase_file(self, number):
        return self._directory / f"phase{number}"

    def log_file(self, number):
        return self._directory / f"task{number}.log"

    def phase(self, number):
        try:
            return self.phase_file(number).read_text().split()[0]
        except (FileNotFoundError, IndexError):
            return "start_up"

    def is_over(self):
        return any(p.poll() is not None for p in self._processes)

    def send(self, number, victim):
        self._processes[victim].send_signal(number)

    def wait(self, seconds):
        """The exit codes; what has not ended by then is a failure."""
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes:
                process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"A process hangs.\n{self.logs()}") from error
        finally:
            self.end()
        return tuple(p.returncode for p in self._processes)

    def logs(self):
        return "\n".join(
            f"--- {number}\n{self.log_file(number).read_text()[-3000:]}"
            for number in range(len(self._processes))
        )

    def end(self):
        for process in self._processes:
            process.kill()
            process.wait()


def train_with_kills(layout, directory, *, kills, seed):
    """Trains to the end, through so many kills.

    Args:
        layout: text, see `tests.conformance.running.Layout`.
        directory: an empty one; the run lives in its `run`.
        kills: how many.
        seed: of the moments, the signals and the victims.

    Returns:
        The kills.
    """
    layout = Layout.parse(layout)
    chance = random.Random(seed)
    done = []
    while True:
        run = Run(layout, directory / "run")
        if len(done) == kills:
            codes = run.wait(_RUN_SECONDS)
            assert set(codes) == {0}, run.logs()
            return done
        phase = PHASES[len(done) % len(PHASES)]
        kill = Kill(
            phase,
            chance.choice(_SIGNALS),
            chance.randrange(max(layout.workers, 1)),
        )
        _hit(run, kill, chance)
        kill.codes = run.wait(_END_SECONDS)
        if 0 in kill.codes:
            # It was over before the kill: one more is due.
            assert set(kill.codes) <= {0, *_EXPECTED}, run.logs()
            raise AssertionError(
                f"The run was over after {len(done)} of {kills} kills."
            )
        assert set(kill.codes) <= _EXPECTED, (kill, run.logs())
        done.append(kill)


def _hit(run, kill, chance):
    """Waits for the moment, and sends the signal."""
    if kill.phase == "start_up":
        time.sleep(chance.uniform(0.0, _START_SECONDS))
    else:
        # Some way in, so that there is something to lose.
        first = time.monotonic()
        delay = None
        while time.monotonic() < first + _RUN_SECONDS and not run.is_over():
            phase = run.phase(kill.victim)
            if phase != "start_up" and delay is None:
                delay = time.monotonic() + chance.uniform(0.0, 0.8)
            if phase == kill.phase and time.monotonic() > delay:
                time.sleep(chance.uniform(0.0, 0.04))
                break
            time.sleep(0.001)
    run.send(kill.number, kill.victim)


def compare(model_dir, expected_dir):
    """Asserts that two runs left the same behind, byte by byte."""
    found, expected = (
        checkpoints.load_newest(str(path / "checkpoints"))
        for path in (model_dir, expected_dir)
    )
    arrays, expected_arrays = as_numpy(found), as_numpy(expected)
    assert arrays.keys() == expected_arrays.keys()
    differing = [
        name
        for name, value in arrays.items()
        if value.tobytes() != expected_arrays[name].tobytes()
    ]
    assert not differing
    assert _without_times(found) == _without_times(expected)
    assert lines(model_dir) == lines(expected_dir)


def table(rows):
    """A summary: what was killed where, by what, and how it ended."""
    head = ["strategy", "kills", "SIGKILL", "SIGTERM", *PHASES, "equal"]
    out = ["  ".join(f"{name:>10}" for name in head)]
    for layout, kills, equal in rows:
        counts = [
            len(kills),
            sum(k.number == signal.SIGKILL for k in kills),
            sum(k.number == signal.SIGTERM for k in kills),
            *(sum(k.phase == phase for k in kills) for phase in PHASES),
        ]
        cells = [layout, *map(str, counts), "yes" if equal else "NO"]
        out.append("  ".join(f"{cell:>10}" for cell in cells))
    return "\n".join(out)


def _without_times(snapshot):
    host = dict(snapshot.host)
    for name in ("times", "fingerprints"):
        host.pop(name)
    return json.loads(json.dumps(host, default=np.ndarray.tolist))
