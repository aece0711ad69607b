"""The files of a new project."""

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "NAME"
version = "0.1.0"
description = "A model, its data and a Trainer."
requires-python = ">=3.11"
# With [gpu] or [tpu] in place of [cpu] for other machines.
dependencies = ["keras-trainer-plugins[cpu]"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.scripts]
NAME = "NAME.__main__:main"

# So that --gin_file=NAME/NAME.gin is found in every folder.
[project.entry-points."trainer.gin_files"]
NAME = "NAME:GIN_FILES"

[tool.setuptools]
packages = ["NAME"]

[tool.setuptools.package-data]
NAME = ["*.gin"]
"""
_README = """\
# NAME

```sh
python -m pip install -e '.[test]'
NAME --model_dir=runs/first
NAME --gin.network.units=64 --model_dir=runs/wide
python -m trainer.runs
python -m pytest
```

`NAME/NAME.gin` says what is trained; `NAME --help` lists the flags that every
run takes. `data.py`, `model.py` and `trainer.py` are yours to change.
"""
_INIT = '''\
"""A model, its data and a Trainer."""

import pathlib

GIN_FILES = str(pathlib.Path(__file__).parent)
'''
_MAIN = '''\
"""`NAME`, or `python -m NAME`: trains what NAME.gin says.

It takes all flags of `python -m trainer`.
"""

import sys

from trainer.__main__ import main as train


def main() -> None:
    """Runs the command line with NAME.gin, unless another file is given."""
    others = ("--gin_file", "--resume")
    if not any(argument.startswith(others) for argument in sys.argv):
        sys.argv.insert(1, "--gin_file=NAME/NAME.gin")
    train()


if __name__ == "__main__":
    main()
'''
_DATA = '''\
"""The data: points on two spirals, to be told apart."""

import gin
import numpy as np


@gin.configurable
def spirals(
    split: str, examples: int = 2000, noise: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of shape [examples, 2], float32, and their spiral.

    Args:
        split: "train" or "eval".
        examples: how many points.
        noise: the standard deviation of each coordinate.
    """
    random = np.random.default_rng(0 if split == "train" else 1)
    spiral = random.integers(2, size=examples)
    turn = np.sqrt(random.random(examples))
    angle = 3 * np.pi * turn + np.pi * spiral
    points = turn * np.stack([np.cos(angle), np.sin(angle)])
    points = points.T + noise * random.normal(size=(examples, 2))
    return points.astype("float32"), spiral
'''
_MODEL = '''\
"""The model."""

import gin
import keras


@gin.configurable
def network(units: int = 64, layers: int = 3) -> keras.Model:
    """Returns a network from points to the logits of two classes."""
    hidden = [
        keras.layers.Dense(units, activation="relu") for _ in range(layers)
    ]
    return keras.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(2)])
'''
_TRAINER = '''\
"""The Trainer: a focal loss, in which hard examples count more."""

from typing import Any

import gin
import tensorflow as tf

from trainer import Trainer


@gin.configurable
class FocalTrainer(Trainer):
    """Trains with a focal loss.

    Args:
        gamma: how little easy examples count; 0 is the cross entropy.
        **kwargs: those of `Trainer`.
    """

    def __init__(self, *, gamma: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gamma = gamma

    def per_example_loss(
        self, x: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor
    ) -> tf.Tensor:
        """Returns the loss of each example, of shape [batch]."""
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=y, logits=y_pred
        )
        return (1 - tf.exp(-cross_entropy)) ** self.gamma * cross_entropy
'''
_GIN = """\
import NAME.data
import NAME.model
import NAME.trainer

run.trainer = @FocalTrainer
FocalTrainer.gamma = 1.0
Trainer.model = @network
Trainer.data = @spirals
Trainer.batch_size = 64
Trainer.metrics = [@metrics.SparseCategoricalAccuracy]
metrics.SparseCategoricalAccuracy.name = 'accuracy'
Trainer.optimizer = @Adam
Adam.learning_rate = 0.003

run.train_steps = 1000
run.eval_every = 200
run.callbacks = [
    @Progress(),
    @TensorBoard(),
    @JsonLines(),
    @Preemption(),
    @Checkpoint(),
]
# What a run ends with, and --mode=export writes.
Checkpoint.load_best = True
Checkpoint.monitor = 'val_accuracy'
"""
_TEST = '''\
"""The whole of it: what NAME.gin trains tells the spirals apart."""

import json
import pathlib
import subprocess
import sys


def test_it_learns(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "NAME", f"--model_dir={run}"]
    subprocess.run(command, check=True)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["split"] == "eval"
    assert last["accuracy"] > 0.95
'''
_IGNORED = """\
__pycache__/
*.egg-info/
build/
/runs/
"""


def files_of(name: str) -> dict[str, str]:
    """Returns the text of each file of a project, by its path in it."""
    files = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        ".gitignore": _IGNORED,
        "NAME/__init__.py": _INIT,
        "NAME/__main__.py": _MAIN,
        "NAME/data.py": _DATA,
        "NAME/model.py": _MODEL,
        "NAME/trainer.py": _TRAINER,
        "NAME/NAME.gin": _GIN,
        "tests/test_NAME.py": _TEST,
    }
    return {
        path.replace("NAME", name): text.replace("NAME", name)
        for path, text in files.items()
    }
