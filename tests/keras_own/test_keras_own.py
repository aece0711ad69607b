"""Keras' own tests pass with a Trainer, but for those that are listed."""

import tomllib

import pytest

from tests.conftest import ROOT
from tests.keras_own.running import FILES, results, run

FAILING = tomllib.loads(
    (ROOT / "tests" / "keras_own" / "failing.toml").read_text()
)


def test_the_list_has_files_that_are_run_and_reasons():
    assert FAILING.keys() <= set(FILES)
    assert all(
        why.endswith(".") for one in FAILING.values() for why in one.values()
    )


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_a_file_passes_but_for_what_is_listed(file, tmp_path):
    run(file, report=tmp_path / "report.xml")
    found = results(tmp_path / "report.xml")
    assert found
    failed = {name for name, passed in found.items() if not passed}
    assert failed == FAILING.get(file, {}).keys()
