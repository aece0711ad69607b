"""The notebook of docs/ is executed, and shows what is saved in it.

`python -m tests.test_notebook` saves what it shows now.
"""

import os
import re
import tempfile

import pytest

from tests.conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("matplotlib", reason="needs the extra plot")
PATH = ROOT / "docs" / "first_run.ipynb"
# How long it took, in seconds and in phases, is what is said last.
_TIMES = re.compile(r"(?s:trained .*)|.*examples/s.*")
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]\d+)?")
# Colors of a terminal, in a traceback.
_COLOR = re.compile(r"\x1b\[[\d;]*m")


def executed(folder):
    """The notebook as a new kernel runs it, in a folder of its own."""
    book = nbformat.read(PATH, 4)
    nbclient.NotebookClient(
        book,
        timeout=300,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return book


def shown(book):
    """What each cell shows, without what differs between two machines."""
    return {cell.id: outputs(cell) for cell in book.cells}


def outputs(cell):
    """By stream, error or kind of data, the text without its numbers."""
    found = {}
    for one in cell.get("outputs", ()):
        if one.output_type == "stream":
            found[one.name] = found.get(one.name, "") + one.text
        elif one.output_type == "error":
            found["error"] = "\n".join([one.ename, *one.traceback])
        else:
            found |= one.data
    return {
        kind: "a picture"
        if kind == "image/png"
        else _NUMBER.sub("#", _TIMES.sub("#", _COLOR.sub("", text)))
        for kind, text in found.items()
    }


@pytest.mark.long
def test_the_notebook_shows_what_is_saved_in_it(tmp_path, monkeypatch):
    # As on a machine where nobody has asked TensorFlow to be quiet.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    saved, book = nbformat.read(PATH, 4), executed(tmp_path)
    found = shown(book)
    assert found == shown(saved)
    text = str(found)
    # TensorFlow's own lines, which come while it is imported.
    assert "oneDNN" not in text
    assert "I0000" not in text
    assert "strategy default on cpu:#" in found["cell-3"]["stdout"]
    # One output, which was updated to the end.
    (table,) = [
        one.data["text/html"]
        for one in book.cells[4].outputs
        if one.output_type == "display_data"
    ]
    assert table.count("<tr><td>epoch ") == 5
    assert table.count("<polyline ") == 2
    assert "a picture" in found["cell-plot"].values()
    assert "<td>accuracy</td>" in found["cell-7"]["text/html"]
    by_id = {cell.id: cell for cell in book.cells}
    accuracy = by_id["cell-7"].outputs[-1].data["text/plain"]
    assert float(re.search(r"'accuracy': ([\d.]+)", accuracy)[1]) > 0.8
    (error,) = by_id["cell-11"].outputs[-1:]
    assert error["ename"] == "UserError"
    assert len(error["traceback"]) <= 2
    assert "These are one-hot vectors" in error["traceback"][-1]
    assert (tmp_path / "digits.keras").exists()


if __name__ == "__main__":
    os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    with tempfile.TemporaryDirectory() as made:
        written = executed(made)
    # What only tells of this machine and of today.
    written.metadata["language_info"] = {"name": "python"}
    for one in written.cells:
        one.metadata.pop("execution", None)
    nbformat.write(written, PATH)
