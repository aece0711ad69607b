"""Runs all cases under one strategy; see `tests.conformance.running`."""

import json

import numpy as np

from tests.exactness.cases import all_cases
from tests.exactness.measured import by_trainer, difference
from tests.exactness.reference import read


def run(strategy, directory):
    """Compares every case with the reference in `directory`.

    Returns:
        `"found"`: a JSON text, from a cell's name to the largest difference,
        or to the sentence that refuses it.
    """
    wanted = read(directory)
    found = {}
    for case in all_cases():
        if case.name not in wanted:
            continue
        result = by_trainer(case, strategy)
        if isinstance(result, dict):
            result = difference(result, wanted[case.name])
        found[case.name] = result
    return {"found": np.array(json.dumps(found))}
