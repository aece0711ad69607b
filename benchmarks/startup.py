"""What a command costs before, and without, its first step.

python -m benchmarks --parts=startup
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.process import ROOT

_GIN = "--gin_file=experiments/digits.gin"
_SECONDS = 300.0


def measure(
    *, rounds: int, tell: Callable[[str], None], whole: bool = True
) -> dict[str, Any]:
    """Runs each command in turn, several times.

    Args:
        rounds: how often.
        tell: is given a line about what goes on.
        whole: whether to run all of `experiments/digits.gin`, too.

    Returns:
        The part of the report; `seconds` has those of each round by name.
    """
    found: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    if not whole:
        del found["digits.gin, whole"]
    for number in range(rounds):
        for name, seconds in found.items():
            seconds.append(_COMMANDS[name]())
        shown = ", ".join(f"{k} {v[-1]:.2f}" for k, v in found.items())
        tell(f"  round {number + 1} of {rounds}: {shown} s")
    medians = {k: statistics.median(v) for k, v in found.items()}
    ratio = statistics.median(
        a / b
        for a, b in zip(
            found["first step"], found["first step, bare script"], strict=True
        )
    )
    return {
        "title": "Starting",
        "text": [
            "Seconds of wall time from the command on. A mistake in the "
            "configuration, and `print_config`, take a second only where the "
            "same files have been started before, so the first of them may "
            "take as long as TensorFlow's import. The first step is that "
            "of `experiments/digits.gin` with `log_every=1`, against a script "
            "that trains the same net in a `tf.function`; the Trainer takes "
            f"{ratio:.2f} times as long."
        ],
        "head": ("command", "median, s", "least", "most"),
        "cells": [
            (name, f"{medians[name]:.2f}", f"{min(v):.2f}", f"{max(v):.2f}")
            for name, v in found.items()
        ],
        "seconds": found,
        "first_step_ratio": ratio,
    }


def _until_end(*arguments: str, code: int = 0) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *_in(folder, arguments)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        seconds = time.perf_counter() - began
    if done.returncode != code:
        raise SystemExit(
            f"{arguments} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return seconds


def _until_step(*arguments: str) -> float:
    """Seconds until a command prints a line that begins with `step 1`."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        began = time.perf_counter()
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", *_in(folder, arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("step 1"):
                    return time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        raise SystemExit(f"{arguments}: no step.\n{log.read_text()[-3000:]}")


def _in(folder: str, arguments: tuple[str, ...]) -> list[str]:
    return [one.replace("FOLDER", folder) for one in arguments]


def _trainer(*arguments: str) -> tuple[str, ...]:
    return ("-m", "trainer", _GIN, "--model_dir=FOLDER/run", *arguments)


# In this order in each round.
_COMMANDS: dict[str, Callable[[], float]] = {
    "`--help`": lambda: _until_end("-m", "trainer", "--help"),
    "config error": lambda: _until_end(
        *_trainer("--gin.Adam.learning_rat=0.1"), code=2
    ),
    "`--mode=print_config`": lambda: _until_end(
        *_trainer("--mode=print_config")
    ),
    "first step": lambda: _until_step(
        *_trainer("--gin.run.log_every=1", "--steps_per_loop=1")
    ),
    "first step, bare script": lambda: _until_step(
        "-m", "benchmarks.bare_script"
    ),
    "digits.gin, whole": lambda: _until_end(*_trainer()),
}
