"""The notebook of docs/ is executed, and shows what it should."""

import pytest

from tests.conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
PATH = ROOT / "docs" / "first_run.ipynb"


def test_the_notebook_holds_no_output():
    """It would be that of one machine, and change with each run."""
    for cell in nbformat.read(PATH, 4).cells:
        assert not cell.get("outputs")
        assert not cell.get("execution_count")


def test_the_notebook_runs(tmp_path, monkeypatch):
    # As on a machine where nobody has asked TensorFlow to be quiet.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    book = nbformat.read(PATH, 4)
    nbclient.NotebookClient(
        book,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    shown = [one for cell in book.cells for one in cell.get("outputs", ())]
    printed = "".join(one.get("text", "") for one in shown)
    # TensorFlow's own lines, which come while it is imported.
    assert "oneDNN" not in printed
    assert "I0000" not in printed
    assert "strategy default on cpu:0 | 4,810 parameters" in printed
    assert "epoch 5/5  loss" in printed
    (error,) = [one for one in shown if one["output_type"] == "error"]
    assert error["ename"] == "UserError"
    assert len(error["traceback"]) <= 2
    assert "These are one-hot vectors" in error["traceback"][-1]
    assert (tmp_path / "digits.keras").exists()
