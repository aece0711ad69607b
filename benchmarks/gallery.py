"""The gallery: what each experiment reaches, and that strategies agree.

    python -m benchmarks.gallery [NAME ...] [--data_dir=MNIST] [--out=DIR]
        [--figures_only | --strategies_only]

Prints the table of docs/gallery.md. Each figure is that of the whole
experiment on one device, read from its metrics.jsonl. For the strategies, its
first steps are run under each, and the weights are compared.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.process import ROOT
from trainer.checkpoint import storage

# Steps after which weights are compared. Later, rounding has grown: training
# is chaotic.
STEPS = 10
_LIMIT_SECONDS = 3600.0
# By name: the modules that run it, and its flags.
_STRATEGIES = {
    "default": (["trainer"], ["--strategy=default"]),
    "mirrored": (
        ["trainer"],
        ["--strategy=mirrored", "--virtual_devices=2"],
    ),
    "multi_worker_mirrored": (
        ["trainer.launch", "--num_workers=2", "--"],
        ["--strategy=multi_worker_mirrored"],
    ),
    "parameter_server": (
        ["trainer.launch", "--num_workers=1", "--num_ps=2", "--"],
        ["--strategy=parameter_server"],
    ),
}
_SYNCHRONOUS = ("default", "mirrored", "multi_worker_mirrored")
# Replicas draw their own numbers, so one and two of them differ.
_TWO_REPLICAS = ("mirrored", "multi_worker_mirrored")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One experiment.

    Attributes:
        what: in a few words.
        metric: the name of its figure, in the lines of the eval split.
        stated: what the figure must reach.
        lower_is_better: whether it must not be above that.
        strategies: those that must end with the weights of the first one.
        tolerance: the largest absolute difference of a weight after `STEPS`.
        needs_mnist: whether it reads MNIST from the folder that was named.
        flags: for this experiment.
        teacher: an experiment that must have run before it.
    """

    what: str
    metric: str
    stated: float
    lower_is_better: bool = False
    strategies: Sequence[str] = _SYNCHRONOUS
    tolerance: float = 1e-4
    needs_mnist: bool = False
    flags: Sequence[str] = ()
    teacher: str | None = None


GALLERY = {
    "vae": Entry(
        "variational autoencoder, MNIST: loss in nats",
        *("loss", 112.0, True),
        strategies=_TWO_REPLICAS,
        needs_mnist=True,
    ),
    "gan": Entry(
        "GAN, MNIST: Fréchet distance of thumbnails",
        *("frechet", 0.5, True),
        strategies=_TWO_REPLICAS,
        needs_mnist=True,
    ),
    "transformer": Entry(
        "transformer, text of Python's help: nats per character",
        *("loss", 1.4, True),
    ),
    "contrastive": Entry(
        "SimCLR, digits: accuracy of a linear probe",
        *("probe_accuracy", 0.85),
    ),
    "distillation": Entry(
        "distillation, digits: accuracy of a student without labels",
        *("student_accuracy", 0.94),
        flags=(
            "--gin.student_and_teacher.teacher='{out}/digits/export/model.keras'",
        ),
        teacher="digits",
    ),
    "recommender": Entry(
        "recommender, names in Python's functions: AUC",
        *("auc", 0.7),
        strategies=(*_SYNCHRONOUS, "parameter_server"),
    ),
    "resnet": Entry(
        "ResNet-50 of `keras.applications`, MNIST: accuracy",
        *("accuracy", 0.88),
        strategies=_TWO_REPLICAS,
        needs_mnist=True,
    ),
    "hub": Entry(
        "vision transformer of KerasHub, MNIST: accuracy",
        *("accuracy", 0.92),
        needs_mnist=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs experiments in folders of their own.

    Attributes:
        out: holds the run directories.
        data_dir: of MNIST's files; without it Keras downloads them.
        tell: is given a line about what goes on.
    """

    out: pathlib.Path
    data_dir: str | None
    tell: Callable[[str], None]

    def figure(self, name: str) -> tuple[float, float]:
        """Runs all of an experiment on one device.

        Returns:
            Its figure, and the seconds that it took.
        """
        entry = GALLERY[name]
        if entry.teacher is not None:
            self._run(entry.teacher, "default", self.out / entry.teacher)
        started = time.monotonic()
        directory = self.out / name
        self._run(name, "default", directory)
        seconds = time.monotonic() - started
        lines = (directory / "metrics.jsonl").read_text().splitlines()
        measured = [json.loads(line) for line in lines]
        (*_, last) = (one for one in measured if one["split"] == "eval")
        return last[entry.metric], seconds

    def difference(self, name: str) -> float:
        """The largest difference between weights under any two strategies."""
        entry = GALLERY[name]
        teacher = entry.teacher
        if teacher is not None and not (self.out / teacher).is_dir():
            self._run(teacher, "default", self.out / teacher)
        found = []
        for strategy in entry.strategies:
            directory = self.out / f"{name}_{strategy}"
            # Of one compiled form: others round differently.
            flags = ["--mode=train", f"--train_steps={STEPS}"]
            flags.append("--jit_compile=graph")
            self._run(name, strategy, directory, *flags)
            found.append(_weights(directory))
        return max(
            float(np.abs(first - other).max())
            for weights in found[1:]
            for first, other in zip(found[0], weights, strict=True)
        )

    def _run(
        self, name: str, strategy: str, directory: pathlib.Path, *flags: str
    ) -> None:
        modules, more = _STRATEGIES[strategy]
        command = [sys.executable, "-m", *modules, *more, *flags]
        command += [
            f"--gin_file={ROOT / 'experiments' / name}.gin",
            f"--model_dir={directory}",
        ]
        entry = GALLERY.get(name)
        if entry is not None:
            command += [one.format(out=self.out) for one in entry.flags]
            if entry.needs_mnist and self.data_dir:
                command.append(f"--data_dir={self.data_dir}")
        self.tell(f"{name}, {strategy}")
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name}, {strategy}:\n{done.stderr[-4000:]}")


def reaches(entry: Entry, figure: float) -> bool:
    """Whether a figure is as good as the one stated, or better."""
    if entry.lower_is_better:
        return figure <= entry.stated
    return figure >= entry.stated


def _weights(directory: pathlib.Path) -> list[np.ndarray]:
    """The model's weights in a run's newest checkpoint."""
    snapshot = storage.load_newest(str(directory / "checkpoints"))
    # As float64: there are unsigned numbers, too, those of random seeds.
    return [
        np.asarray(value, np.float64)
        for name, value in sorted(snapshot.arrays.items())
        if name.startswith("model/")
    ]


def row(
    name: str, figure: tuple[float, float] | None, difference: float | None
) -> str:
    """A row of the table; dashes stand for what was not measured."""
    entry = GALLERY[name]
    sign = "≤" if entry.lower_is_better else "≥"
    reached, seconds = figure or (None, None)
    cells = [
        f"[`{name}.gin`](../experiments/{name}.gin)",
        entry.what,
        f"{sign} {entry.stated:g}",
        "–" if reached is None else f"{reached:.4g}",
        "–" if seconds is None else f"{seconds:.0f} s",
        ", ".join(entry.strategies),
        "–" if difference is None else f"{difference:.1e}",
        f"{entry.tolerance:.0e}",
    ]
    return f"| {' | '.join(cells)} |"


HEADER = (
    "| experiment | what is measured | stated | reached | time | equal under "
    "| difference | at most |\n|---|---|---|---|---|---|---|---|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a figure or tolerance is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gallery",
        description="What each experiment of the gallery reaches.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--data_dir", help="a folder with MNIST's four files")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("benchmarks_out/gallery"),
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--figures_only", action="store_true")
    only.add_argument("--strategies_only", action="store_true")
    asked = parser.parse_args(arguments)
    for name in asked.names:
        if name not in GALLERY:
            parser.error(f"no {name!r}; there are {', '.join(GALLERY)}")
    if asked.out.exists():
        parser.error(f"--out={asked.out} exists; a run in it would go on")
    runner = Runner(
        asked.out.resolve(),
        asked.data_dir and str(pathlib.Path(asked.data_dir).resolve()),
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    rows, missed = [], []
    for name in asked.names or GALLERY:
        entry = GALLERY[name]
        figure = None if asked.strategies_only else runner.figure(name)
        difference = None if asked.figures_only else runner.difference(name)
        rows.append(row(name, figure, difference))
        print(rows[-1], file=sys.stderr, flush=True)
        if figure is not None and not reaches(entry, figure[0]):
            missed.append(name)
        if difference is not None and not difference <= entry.tolerance:
            missed.append(name)
    print("\n".join([HEADER, *rows]))
    for name in missed:
        print(f"{name} misses what is stated", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
