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
    cases = [case for case in all_cases() if case.name in wanted]
    found = {
        name: result
        if isinstance(result, str)
        else difference(result, wanted[name])
        for name, result in by_trainer(cases, strategy).items()
    }
    return {"found": np.array(json.dumps(found))}
