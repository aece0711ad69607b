"""What tests in several files use."""

import json

import numpy as np

from trainer import Trainer, checkpoints

_X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")


def make_trainer(model, *, kind=Trainer, **options):
    """A Trainer of a model with three inputs and one output."""
    return kind(
        **{
            "model": model,
            "loss": "mse",
            "data": lambda split: (_X, _X[:, :1]),
            "batch_size": 8,
            "strategy": "default",
            **options,
        }
    )


def read_lines(path):
    """The objects of a file that has one on each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines(model_dir):
    """metrics.jsonl but for the speed; each step of a split is there once."""
    read = read_lines(model_dir / "metrics.jsonl")
    places = [(line["step"], line["split"]) for line in read]
    assert len(places) == len(set(places))
    return [
        {key: line[key] for key in line if key != "examples_per_second"}
        for line in read
    ]


def saved_steps(model_dir):
    """The steps of a run's checkpoints, the oldest first."""
    found = checkpoints.listing(str(model_dir / "checkpoints"))
    return [checkpoints.step_of(path) for path in found]


def assert_same(left, right):
    """Asserts that two lists hold equal arrays."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
