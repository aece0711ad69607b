"""A run with two evaluation sets, to be made under any strategy.

python -m tests.conformance.worker --extra=tests.trainer.loop.set_cases:run
"""

import os

import keras
import numpy as np

from tests.helpers import linear
from trainer import Trainer
from trainer_plugins import Checkpoint, JsonLines

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(40, 3)).astype("float32")
Y = X[:, :1] * 2
# Neither size is a multiple of the batch size.
DATA = {"train": (X, Y), "eval": (X[:19], Y[:19]), "rare": (X[30:], -Y[30:])}
EVERY = {"eval": 4, "rare": 6}


def make(plugin="default", **options):
    return Trainer(
        **{
            "model": linear,
            "loss": "mse",
            "metrics": ["mae"],
            "optimizer": lambda: keras.optimizers.SGD(0.01),
            "data": DATA,
            "batch_size": 8,
            "strategy": plugin,
            **options,
        }
    )


def measured(trainer, split):
    """A set's values, by NumPy."""
    kernel, bias = (np.array(v) for v in trainer.model.get_weights())
    x, y = DATA[split]
    error = x @ kernel + bias - y
    return {"loss": np.mean(error**2), "mae": np.mean(np.abs(error))}


def train(trainer, steps, model_dir):
    return trainer.train_and_evaluate(
        steps,
        model_dir=model_dir,
        eval_every=EVERY,
        log_every=5,
        steps_per_loop=3,
        callbacks=[JsonLines(), Checkpoint(every=50)],
        verbose=0,
    )


def run(plugin, directory):
    """Values at the end, beside those of NumPy."""
    trainer = make(plugin)
    found = train(trainer, 13, os.path.join(directory, "run"))
    results = {f"found.{k}": np.array(v) for k, v in found.items()}
    for split in ("eval", "rare"):
        for name, value in measured(trainer, split).items():
            results[f"wanted.{split}.{name}"] = value
    return results
