"""The frozen numbers: reads them, writes them, compares with them.

`numbers.npz` has the weights of each run as one vector, `numbers.json` the
rest: which variables these are, what was logged, a hash of the bytes.
"""

import hashlib
import json
import pathlib

import numpy as np

from tests.frozen import running
from tests.frozen.fingerprint import fingerprint

_HERE = pathlib.Path(__file__).resolve().parent
_ARRAYS, _REST = _HERE / "numbers.npz", _HERE / "numbers.json"


def measured(model_dir):
    """What a run has come to: JSON values, and its weights."""
    weights = {
        path: array
        for path, array in running.weights(model_dir).items()
        # What a layer draws random numbers from is no weight.
        if array.dtype == np.float32
    }
    vector = np.concatenate([array.ravel() for array in weights.values()])
    found = {
        "variables": [
            [path, list(array.shape)] for path, array in weights.items()
        ],
        "lines": running.lines(model_dir),
        "sha256": hashlib.sha256(vector.tobytes()).hexdigest(),
    }
    if skipped := running.skipped(model_dir):
        found["skipped"] = skipped
    return found, vector


class Frozen:
    """The contents of the two files.

    Attributes:
        fingerprint: of the machine on which they were written.
        runs: by name, see `measured`.
        vectors: by name, the weights.
    """

    def __init__(self):
        self.fingerprint, self.runs, self.vectors = fingerprint(), {}, {}

    @property
    def exists(self):
        return _REST.exists()

    @classmethod
    def read(cls):
        found = cls()
        stored = json.loads(_REST.read_text())
        found.fingerprint, found.runs = stored["fingerprint"], stored["runs"]
        with np.load(_ARRAYS) as arrays:
            found.vectors = dict(arrays)
        return found

    def write(self):
        np.savez_compressed(_ARRAYS, **dict(sorted(self.vectors.items())))
        runs = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(run)}"
            for name, run in sorted(self.runs.items())
        )
        head = json.dumps(self.fingerprint)
        _REST.write_text(
            f'{{"fingerprint": {head},\n "runs": {{\n{runs}\n}}}}\n'
        )

    def freeze(self, name, model_dir, *, without_bytes=None):
        """Takes a run's numbers in; the hash if there is no reason not to."""
        found, self.vectors[name] = measured(model_dir)
        if without_bytes is not None:
            del found["sha256"]
            found["without_bytes"] = without_bytes
        self.runs[name] = found

    @property
    def differing_facts(self):
        """What this machine differs in from that of the files."""
        ours = fingerprint()
        return [
            f"{name}: {ours.get(name)}, frozen with {theirs}"
            for name, theirs in {
                **dict.fromkeys(ours),
                **self.fingerprint,
            }.items()
            if ours.get(name) != theirs
        ]

    def check(self, name, model_dir, *, tolerance):
        """Asserts that a run has come to the frozen numbers."""
        found, vector = measured(model_dir)
        expected = self.runs[name]
        assert found["variables"] == expected["variables"]
        self._check_weights(name, vector, tolerance)
        _check_lines(found["lines"], expected["lines"], tolerance)
        assert found.get("skipped") == expected.get("skipped")
        if "sha256" in expected and not self.differing_facts:
            assert found["sha256"] == expected["sha256"], (
                f"{name}: the same numbers, rounded otherwise. By at most "
                f"{np.abs(vector - self.vectors[name]).max():.1e}."
            )

    def _check_weights(self, name, vector, tolerance):
        start = 0
        for path, shape in self.runs[name]["variables"]:
            part = slice(start, start := start + int(np.prod(shape)))
            np.testing.assert_allclose(
                vector[part],
                self.vectors[name][part],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{name}: {path}",
            )


def _check_lines(found, expected, tolerance):
    """Compares two metrics.jsonl."""
    steps = [(line["step"], line["split"]) for line in expected]
    assert [(line["step"], line["split"]) for line in found] == steps
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"step", "split"}:
            np.testing.assert_allclose(
                ours[key],
                theirs[key],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{key} in step {theirs['step']}",
            )
