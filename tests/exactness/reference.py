"""Keras on one device, in a process of its own.

    python -m tests.exactness.reference DIR

writes DIR/reference.npz and DIR/not_in_keras.json: what Keras itself cannot.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from tests.exactness.cases import all_cases
from tests.exactness.measured import by_keras


def main(directory):
    arrays, failures = {}, {}
    for case in all_cases():
        result = by_keras(case)
        if isinstance(result, str):
            failures[case.name] = result.partition("\n")[0]
            continue
        arrays |= {f"{case.name}|{key}": one for key, one in result.items()}
    np.savez(os.path.join(directory, "reference.npz"), **arrays)
    path = pathlib.Path(directory, "not_in_keras.json")
    path.write_text(json.dumps(failures))


def read(directory):
    """The numbers by cell."""
    found = {}
    with np.load(os.path.join(directory, "reference.npz")) as file:
        for name in file.files:
            cell, _, key = name.partition("|")
            found.setdefault(cell, {})[key] = file[name]
    return found


def failures(directory):
    """What Keras itself cannot, by cell."""
    return json.loads(pathlib.Path(directory, "not_in_keras.json").read_text())


if __name__ == "__main__":
    main(sys.argv[1])
