"""The table in the docs: complete, and what it says is so."""

import keras
import pytest

from tests.exactness import __main__ as command
from tests.exactness import metric_models, table
from tests.exactness.cases import COLUMNS, all_cases, classes


@pytest.fixture(scope="module")
def rows():
    """Class name to its cells, by kind."""
    found, kind = {}, None
    for line in table.PATH.read_text().splitlines():
        if line.startswith("## "):
            kind = line[3:].lower()
            found[kind] = {}
        elif line.startswith("| `"):
            name, *cells = (part.strip() for part in line.split("|")[1:-1])
            found[kind][name.strip("`")] = cells
    return found


def test_no_class_of_keras_is_left_out(rows):
    wanted = {
        "losses": classes(keras.losses, keras.losses.Loss),
        "metrics": metric_models.keras_classes(),
        "optimizers": classes(keras.optimizers, keras.optimizers.Optimizer),
    }
    for kind, names in wanted.items():
        assert rows[kind].keys() == names.keys()
        for cells in rows[kind].values():
            assert len(cells) == len(COLUMNS[kind])


def test_each_cell_is_equal_or_explained(rows):
    notes = {
        line.split("**")[1]
        for line in table.PATH.read_text().splitlines()
        if line.startswith("**")
    }
    used = set()
    for kind in COLUMNS:
        for cells in rows[kind].values():
            for part in ", ".join(cells).split(", "):
                if part in notes:
                    used.add(part)
                else:
                    assert part == "-" or float(part) <= table.TOLERANCE
    assert used == notes


def test_what_is_written_by_hand_is_on_the_page():
    assert table.PATH.read_text().endswith("\n".join(table.written()))


def test_each_name_stands_for_one_cell():
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mirrored:3", "multi_worker_mirrored@2"])
def test_the_table_is_so(strategy, tmp_path):
    found, _ = command.measure([strategy], str(tmp_path))
    assert found[strategy]
    assert not table.unexplained(found)
