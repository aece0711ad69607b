"""Runs `exact_worker` once, and hands out what it wrote."""

import numpy as np

from tests.helpers import run_worker


def pairs(cases):
    """The names of all cases, each with those of its strategies."""
    return [
        (case.__name__, strategy)
        for case, strategies in cases.items()
        for strategy in strategies
    ]


def run_cases(module, directory, root):
    """The arrays of a module's cases, by `case.strategy.key`."""
    worker = "tests.trainer.step.reductions.exact_worker"
    return run_worker(worker, module, directory=directory, root=root)


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
