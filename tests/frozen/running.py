"""Starts runs from the command line, and reads what they leave behind.

Only what docs/reference and docs/scale promise is used: flags, exit
codes, metrics.jsonl, and the arrays and `state.json` of a checkpoint.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
_TIMEOUT = 400  # Seconds; a run takes some three of them.
_SPEED = "examples_per_second"

# How each strategy is started: flags of the launcher, if there are several
# processes, and flags of the run.
STRATEGIES = {
    "default": ((), ()),
    "one_device": ((), ()),
    "mirrored:2": ((), ("--virtual_devices=2",)),
    "mirrored:3": ((), ("--virtual_devices=3",)),
    "central_storage:2": ((), ("--virtual_devices=2",)),
    "multi_worker_mirrored@2": (("--num_workers=2",), ()),
    "parameter_server@1+1": (("--num_workers=1", "--num_ps=1"), ()),
}


@dataclasses.dataclass
class Ended:
    """How a run ended.

    Attributes:
        code: the exit code.
        stderr: what it wrote there; a launcher repeats its chief's.
        model_dir: the run directory.
    """

    code: int
    stderr: str
    model_dir: pathlib.Path


def name_of(strategy):
    """What `--strategy=` takes."""
    return re.match(r"\w+", strategy).group()


def has_peers(strategy):
    """Whether it takes several processes."""
    return bool(STRATEGIES[strategy][0])


def arguments(strategy, model_dir, *flags):
    """The command line behind `python -m trainer`; the last flag wins."""
    return [
        f"--gin_file={ROOT}/tests/frozen/regression.gin",
        f"--model_dir={model_dir.name}",
        f"--strategy={name_of(strategy)}",
        *STRATEGIES[strategy][1],
        *flags,
    ]


@contextlib.contextmanager
def started(strategy, model_dir, *flags):
    """A run in the folder that `model_dir` stands in."""
    launcher, _ = STRATEGIES[strategy]
    command = ["-m", "trainer"]
    if launcher:
        command = ["-m", "trainer.launch", *launcher, "--"]
    with _python(
        model_dir.parent, *command, *arguments(strategy, model_dir, *flags)
    ) as process:
        yield process


def run(strategy, model_dir, *flags):
    """One run, to its end."""
    with started(strategy, model_dir, *flags) as process:
        return ended(process, model_dir)


def ended(process, model_dir):
    """Waits for the end of a run."""
    _, stderr = process.communicate(timeout=_TIMEOUT)
    return Ended(process.returncode, stderr, model_dir)


def run_all(strategy, folder, flags):
    """Runs with different flags: name to flags, to `Ended`.

    Of a strategy without peers they are all in one process.
    """
    if not flags or has_peers(strategy):
        return {n: run(strategy, folder / n, *f) for n, f in flags.items()}
    series = folder / "series.json"
    series.write_text(
        json.dumps(
            [arguments(strategy, folder / n, *f) for n, f in flags.items()]
        )
    )
    with _python(folder, "-m", "tests.frozen.series", str(series)) as process:
        whole = ended(process, folder)
    assert whole.code == 0, whole.stderr[-4000:]
    each = json.loads(series.with_suffix(".ended").read_text())
    return {
        name: Ended(code, stderr, folder / name)
        for name, (code, stderr) in zip(flags, each, strict=True)
    }


@contextlib.contextmanager
def _python(folder, *command):
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # A launcher passes it on.
            process.terminate()
            process.communicate(timeout=60)


def lines(model_dir):
    """metrics.jsonl but for the speed."""
    text = (model_dir / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        line.pop(_SPEED, None)
    return found


def steps(model_dir):
    """The steps of the checkpoints, the newest last."""
    names = (path.name for path in (model_dir / "checkpoints").iterdir())
    return sorted(int(name.removeprefix("step_")) for name in names)


def weights(model_dir):
    """The model's variables in the newest checkpoint, by their paths."""
    import tensorflow as tf

    path = model_dir / "checkpoints" / f"step_{steps(model_dir)[-1]:08d}"
    reader = tf.train.load_checkpoint(str(path / "arrays"))
    state = json.loads((path / "state.json").read_text())
    found = {}
    for number, variable in enumerate(state["variables"]["model"]):
        array = reader.get_tensor(f"model/{number:04d}")
        assert list(array.shape) == variable["shape"], variable
        found[variable["path"]] = array
    return found


def skipped(model_dir):
    """The steps and batches that a guard has made the run step over."""
    path = model_dir / "skipped_batches.json"
    if not path.exists():
        return []
    keys = ("step", "until_step", "batch", "batch_size")
    return [
        {key: one[key] for key in keys if key in one}
        for one in json.loads(path.read_text())["skipped"]
    ]
