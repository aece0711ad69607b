"""Runs `exact_worker` once, and hands out what it wrote."""

import numpy as np

from tests.helpers import run_worker
from tests.sets import is_long, long


def pairs(cases, long_ones=()):
    """The names of all cases, each with those of its strategies."""
    found = [
        (case.__name__, strategy)
        for case, strategies in cases.items()
        for strategy in strategies
    ]
    assert set(long_ones) <= set(found)
    return [long(*pair) if pair in long_ones else pair for pair in found]


def run_cases(module, request, directory, root, long_ones=()):
    """The arrays of a module's cases, by `case.strategy.key`.

    Those of the long set are left out where no test of it is to run.
    """
    worker = "tests.trainer.step.reductions.exact_worker"
    left_out = () if is_long(request) else map(".".join, long_ones)
    return run_worker(worker, module, *left_out, directory=directory, root=root)


def found_in(results, case, strategy):
    """The arrays of one case under one strategy, by key."""
    prefix = f"{case}.{strategy}."
    found = {
        key.removeprefix(prefix): value
        for key, value in results.items()
        if key.startswith(prefix)
    }
    assert found, prefix
    return found


def assert_close(found, expected, tolerance=1e-5):
    """Asserts that the expected keys are there, and near their values."""
    for key, value in expected.items():
        np.testing.assert_allclose(
            found[key], value, atol=tolerance, rtol=0, err_msg=key
        )
