"""The pictures of the pages are there, small, and made from what is here."""

import json
import re

import pytest

from tests.conftest import ROOT

IMAGES = ROOT / "docs" / "images"
# The text that stands for an image, and its file.
_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\([./\w]*images/(?P<name>[\w.]+)\)")


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    return pictures


def test_pictures_are_made_from_what_is_here(pictures):
    """What is listed is made again by `python docs/pictures.py`."""
    made = json.loads(pictures.MADE_FROM.read_text())
    assert [*made] == [*pictures.PICTURES]
    stale = [
        name
        for name, one in made.items()
        if one["from"] != pictures.digest(name)
        or one["content"] != pictures.content(name)
    ]
    assert not stale
    files = {path.name for path in IMAGES.iterdir()}
    assert files == {*made, pictures.MADE_FROM.name}
    assert all((IMAGES / name).stat().st_size < 100_000 for name in made)


def test_each_picture_is_on_a_page_and_in_words(pictures):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [one for path in pages for one in _IMAGE.findall(path.read_text())]
    assert {name for _, name in found} == {*pictures.PICTURES}
    assert all(len(alt) > 20 for alt, _ in found)
