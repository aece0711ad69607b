"""What tests in several files use."""

import hashlib
import json
import os
import subprocess
import sys

import keras
import numpy as np

from trainer import Trainer
from trainer.plugin_api import storage

_X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
ARRAYS = _X, _X[:, :1]


def run_module(module, *arguments, root, timeout=900):
    """What a module prints in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_worker(module, *arguments, directory, root):
    """The arrays that a module writes to `results.npz` in a directory."""
    run_module(module, *arguments, directory, root=root)
    with np.load(os.path.join(directory, "results.npz")) as file:
        return {key: file[key] for key in file.files}


def linear():
    """A model of three inputs and one output."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def make_trainer(model, *, kind=Trainer, **options):
    """A Trainer of a model with three inputs and one output."""
    return kind(
        **{
            "model": model,
            "loss": "mse",
            "data": lambda split: ARRAYS,
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
    found = storage.listing(str(model_dir / "checkpoints"))
    return [storage.step_of(path) for path in found]


def newest(model_dir):
    """The newest checkpoint of a run that can be read."""
    return storage.load_newest(os.path.join(model_dir, "checkpoints"))


def manifest_entry(path):
    """What a checkpoint's manifest says of a file, as it is documented."""
    content = path.read_bytes()
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def best_of(model_dir):
    """The record, once it agrees with the one checkpoint beside it."""
    record = json.loads((model_dir / "best" / "best.json").read_text())
    (path,) = storage.listing(str(model_dir / "best"))
    assert storage.step_of(path) == record["step"]
    assert storage.find_fault(path) is None
    names = {p.name for p in (model_dir / "best").iterdir()}
    assert names == {"best.json", os.path.basename(path)}
    return record


def skipped_batches(model_dir):
    """What skipped_batches.json lists; it must be strict JSON."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (model_dir / "skipped_batches.json").read_text()
    return json.loads(text, parse_constant=refuse)["skipped"]


def assert_same(left, right):
    """Asserts that two lists hold equal arrays."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def as_numpy(snapshot):
    """The arrays of a snapshot, to compare runs bit by bit."""
    return {name: np.asarray(value) for name, value in snapshot.arrays.items()}


def compare(model_dir, expected_dir):
    """Asserts that two runs left the same behind, byte by byte."""
    found, expected = (
        storage.load_newest(str(path / "checkpoints"))
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


def _without_times(snapshot):
    host = dict(snapshot.host)
    del host["times"]
    return json.loads(json.dumps(host, default=np.ndarray.tolist))
