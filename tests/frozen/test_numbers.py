"""Runs come to the frozen numbers, and strategies to each other's."""

import functools

import numpy as np
import pytest

from tests.frozen import interrupted, matrix, running
from tests.frozen.numbers import Frozen

FROZEN = Frozen.read()


def _marked(cell):
    long = [] if cell in matrix.ORDINARY else [pytest.mark.long]
    return pytest.param(cell, marks=long)


@pytest.fixture(scope="module")
def ended(request, tmp_path_factory):
    """Runs all the tests' cells of a strategy when the first one is needed."""
    chosen = [
        item.callspec.params["cell"]
        for item in request.session.items
        if item.function is test_run_comes_to_the_frozen_numbers
    ]

    @functools.cache
    def of_strategy(strategy):
        flags = {
            option: matrix.flags(cell)
            for cell in chosen
            for its_strategy, option in [matrix.split(cell)]
            if its_strategy == strategy
        }
        folder = tmp_path_factory.mktemp("runs")
        return running.run_all(strategy, folder, flags)

    def of_cell(cell):
        strategy, option = matrix.split(cell)
        if not running.has_peers(strategy):
            return of_strategy(strategy)[option]
        folder = tmp_path_factory.mktemp(option)
        return running.run(strategy, folder / "run", *matrix.flags(cell))

    return of_cell


@pytest.mark.parametrize("cell", [_marked(cell) for cell in matrix.CELLS])
def test_run_comes_to_the_frozen_numbers(cell, ended):
    found = ended(cell)
    if cell in matrix.REFUSED:
        assert found.code == 2, found.stderr
        assert "Traceback" not in found.stderr
        assert f"error: {matrix.REFUSED[cell]}" in _chief(found)
        assert not (found.model_dir / "checkpoints").exists()
        return
    assert found.code == 0, found.stderr[-4000:]
    FROZEN.check(cell, found.model_dir, tolerance=matrix.tolerance(cell))


def _chief(found):
    """What the first task said; a launcher may only name its log."""
    logs = sorted((found.model_dir / "logs").glob("*.log"))
    return found.stderr + "".join(log.read_text() for log in logs)


def test_bytes_are_compared_here():
    """Says so in the report where the other tests cannot."""
    if FROZEN.differing_facts:
        pytest.skip(
            "numbers are compared, but not their bytes: "
            + "; ".join(FROZEN.differing_facts)
        )


def test_every_cell_is_frozen_or_refused():
    frozen = {name for name in FROZEN.runs if name in matrix.CELLS}
    assert frozen | matrix.REFUSED.keys() == set(matrix.CELLS)
    assert not frozen & matrix.REFUSED.keys()
    without = {n for n in frozen if "sha256" not in FROZEN.runs[n]}
    assert without == matrix.WITHOUT_BYTES.keys()


def test_ordinary_suite_has_each_strategy_and_each_option():
    strategies, options = zip(*map(matrix.split, matrix.ORDINARY), strict=True)
    of_runs = {strategy for strategy, _ in interrupted.RUNS.values()}
    assert set(strategies) | of_runs == set(running.STRATEGIES)
    assert set(options) == set(matrix.OPTIONS)


@pytest.mark.parametrize("cell", sorted(FROZEN.runs.keys() & matrix.CELLS))
def test_strategies_come_to_the_same_weights(cell):
    """The mathematics is that of one device."""
    _, option = matrix.split(cell)
    if option in matrix.NOT_ALIKE or cell in matrix.NOT_LIKE_ONE_DEVICE:
        return
    tolerance = matrix.tolerance(cell)
    one_device = FROZEN.vectors[f"default/{option}"]
    np.testing.assert_allclose(
        FROZEN.vectors[cell], one_device, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("option", ["xla", "averages"])
def test_option_that_leaves_the_weights_as_they_are(option):
    np.testing.assert_allclose(
        FROZEN.vectors[f"default/{option}"],
        FROZEN.vectors["default/plain"],
        rtol=matrix.TOLERANCE,
        atol=matrix.TOLERANCE,
    )


def test_numbers_can_be_told_apart():
    """Each option that changes the mathematics changes the weights by much."""
    different = set(matrix.OPTIONS) - {"tokens", "xla", "averages"}
    vectors = [FROZEN.vectors[f"default/{option}"] for option in different]
    for i, left in enumerate(vectors):
        for right in vectors[:i]:
            assert np.abs(left - right).max() > 100 * matrix.TOLERANCE
