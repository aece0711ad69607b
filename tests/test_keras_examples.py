"""docs/examples/keras_examples.md: `fit` and a Trainer end alike."""

import difflib
import re

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.helpers import run_worker
from tests.keras_example_worker import end_of
from tests.sets import ordinary

FOLDER = ROOT / "docs" / "examples" / "keras_examples"
MOVED = "_trainer"
NAMES = sorted(
    path.stem for path in FOLDER.glob("*.py") if not path.stem.endswith(MOVED)
)
MOST_LINES = 15
# Of float32 weights and metrics, after a few epochs.
TOLERANCE = 1e-5


def changed_lines(name):
    """How many lines of the first file are replaced, or come to it."""
    before, after = (
        (FOLDER / f"{name}{suffix}.py").read_text().splitlines()
        for suffix in ("", MOVED)
    )
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(
        max(i2 - i1, j2 - j1)
        for kind, i1, i2, j1, j2 in changes.get_opcodes()
        if kind != "equal"
    )


def rows():
    """The table's name to its last two columns."""
    page = (ROOT / "docs" / "examples" / "keras_examples.md").read_text()
    found = re.findall(
        r"^\| \[`(\w+)`\]\(keras_examples/\1\.py\) "
        r"\| \[`\1_trainer`\]\(keras_examples/\1_trainer\.py\) "
        r"\| .* \| (\d+) \| (equal|refused) \|$",
        page,
        re.MULTILINE,
    )
    return {name: columns for name, *columns in found}


def test_each_is_listed_with_its_number_of_lines():
    found = rows()
    assert found.keys() == set(NAMES)
    assert len(NAMES) == 22
    for name in NAMES:
        assert int(found[name][0]) == changed_lines(name) <= MOST_LINES


def check_equal(expected, found):
    """Asserts that a Trainer ended as `fit` did."""
    assert expected.keys() - {"learning_rate"} <= found.keys()
    for name in expected.keys() & found.keys():
        np.testing.assert_allclose(
            found[name],
            expected[name],
            atol=TOLERANCE,
            rtol=TOLERANCE,
            err_msg=name,
        )


@pytest.mark.parametrize("name", ordinary(NAMES, []))
def test_both_end_alike_on_one_device_and_on_two_or_are_refused(name, tmp_path):
    pytest.importorskip("sklearn")
    moved = FOLDER / f"{name}{MOVED}.py"
    expected = end_of(FOLDER / f"{name}.py")
    check_equal(expected, end_of(moved))
    found = run_worker(
        "tests.keras_example_worker", moved, directory=tmp_path, root=ROOT
    )
    if rows()[name][1] == "refused":
        assert found.keys() == {"refused"}
    else:
        check_equal(expected, found)
