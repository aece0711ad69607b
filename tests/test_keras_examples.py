"""docs/keras_examples.md: `fit`, and the same with a Trainer, end alike."""

import difflib
import re
import runpy

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.sets import ordinary

FOLDER = ROOT / "docs" / "keras_examples"
MOVED = "_trainer"
NAMES = sorted(
    path.stem for path in FOLDER.glob("*.py") if not path.stem.endswith(MOVED)
)
MOST_LINES = 15
# Of float32 weights and metrics, after a few epochs.
TOLERANCE = 1e-4


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


def test_each_is_listed_with_its_number_of_lines():
    page = (ROOT / "docs" / "keras_examples.md").read_text()
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(keras_examples/\1\.py\) "
        r"\| \[`\1_trainer`\]\(keras_examples/\1_trainer\.py\) "
        r"\| .* \| (\d+) \|$",
        page,
        re.MULTILINE,
    )
    assert dict(rows) == {name: str(changed_lines(name)) for name in NAMES}
    assert len(NAMES) == 10
    assert all(changed_lines(name) <= MOST_LINES for name in NAMES)


@pytest.mark.parametrize("name", ordinary(NAMES, []))
def test_both_end_alike(name):
    pytest.importorskip("sklearn")
    ends = []
    for suffix in ("", MOVED):
        names = runpy.run_path(str(FOLDER / f"{name}{suffix}.py"))
        model = names.get("model") or names["autoencoder"]
        ends.append((names["history"].history, model.get_weights()))
    (history, weights), (its_history, its_weights) = ends
    assert set(history) - {"learning_rate"} <= set(its_history)
    for metric in history.keys() & its_history.keys():
        np.testing.assert_allclose(
            its_history[metric], history[metric], atol=TOLERANCE, rtol=TOLERANCE
        )
    for one, other in zip(weights, its_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)
