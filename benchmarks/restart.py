"""How soon two workers train again after one of them was killed.

    python -m benchmarks.restart [--kills=5]

A run of two workers under `python -m trainer.launch` loses one by SIGKILL,
again and again. Measured is the time from the signal to the first line that
the restarted run logs, ten steps in, and before and after it the time that two
processes take which import TensorFlow and Keras at once and do nothing: no
restart can be faster. Prints the median of both, and their difference.
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SECONDS = 120.0
_FLAGS = (
    f"--gin_file={ROOT}/experiments/digits.gin",
    "--strategy=multi_worker_mirrored",
    "--train_steps=1000000",
    "--gin.run.steps_per_loop=10",
    "--gin.run.log_every=10",
    "--gin.run.eval_every=1000000",
    "--gin.Checkpoint.every=100",
)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    kills = parser.parse_args().kills
    # Before and after, because the run leaves no core free.
    imports = [_import_seconds() for _ in range(3)]
    restarts = []
    with tempfile.TemporaryDirectory() as folder:
        run = _launch(pathlib.Path(folder), kills)
        try:
            for number in range(kills):
                restarts.append(_restart_seconds(pathlib.Path(folder), number))
                print(
                    f"kill {number + 1} of worker {number % 2}: "
                    f"{restarts[-1]:.1f} s",
                    flush=True,
                )
        finally:
            run.send_signal(signal.SIGINT)
            run.send_signal(signal.SIGINT)
            run.wait()
    imports += [_import_seconds() for _ in range(3)]
    restart, importing = map(statistics.median, (restarts, imports))
    print(
        f"median: next step after {restart:.1f} s, imports {importing:.1f} s: "
        f"{restart - importing:.1f} s more, ratio {restart / importing:.2f}"
    )


def _launch(folder: pathlib.Path, kills: int) -> subprocess.Popen[bytes]:
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "trainer.launch"),
                *("--num_workers=2", f"--max_restarts={2 * kills}"),
                *("--", *_FLAGS, f"--model_dir={folder}/run"),
            ],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _import_seconds() -> float:
    """What importing takes while a peer process imports, too."""
    begin = time.monotonic()
    code = "import tensorflow, keras"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    for process in both:
        process.wait()
    return time.monotonic() - begin


def _restart_seconds(folder: pathlib.Path, number: int) -> float:
    lines = folder / "run" / "metrics.jsonl"
    grown = _count(lines) + 20
    _wait_until(lambda: _count(lines) >= grown, folder)
    victim = _worker(folder, number % 2)
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    # What is in the file now is of the killed attempt; a resumed run drops
    # lines, and then adds one for each 10 steps.
    time.sleep(0.5)
    start = _stamp(lines)
    _wait_until(lambda: _stamp(lines) != start, folder)
    # The new attempt's first line, not the dropping of old ones.
    size = lines.stat().st_size
    _wait_until(lambda: lines.stat().st_size > size, folder)
    return time.monotonic() - begin


def _wait_until(happened: Callable[[], bool], folder: pathlib.Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit((folder / "log").read_text()[-3000:])
        time.sleep(0.01)


def _count(path: pathlib.Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _stamp(path: pathlib.Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_size


def _worker(folder: pathlib.Path, index: int) -> int:
    """The process of a worker of this run."""
    flag = f"--model_dir={folder}/run".encode()
    wanted = f'"index": {index}'
    for entry in pathlib.Path("/proc").iterdir():
        if not re.fullmatch(r"\d+", entry.name):
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes().decode()
        except OSError:
            continue
        if flag in command and wanted in environment:
            return int(entry.name)
    raise SystemExit(f"There is no worker {index}.")


if __name__ == "__main__":
    main()
