"""The site is built by its command, is complete, and loads nothing."""

import html
import html.parser
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long


class Resources(html.parser.HTMLParser):
    """What a page loads, and what it links to."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.linked, self.names = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.names.add(given["id"])
        if tag == "a" and given.get("href"):
            self.linked.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href", ""))
        elif given.get("src"):
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    where = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "-f", "docs/site/mkdocs.yml", "--site-dir", str(where)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return where


@pytest.fixture(scope="module")
def pages(site):
    return {
        str(path.relative_to(site)): Resources(path.read_text())
        for path in site.rglob("*.html")
    }


def as_text(page):
    """A page without its tags, which highlighting puts between words."""
    return html.unescape(re.sub("<[^>]*>", "", page.read_text()))


def test_every_page_is_there(site, pages):
    files = [p.stem for p in (ROOT / "docs").glob("*.md")]
    for name in (*files, "index", "changelog"):
        assert f"{name}.html" in pages, name
    # Each can be reached from the first one.
    linked = set(pages["index.html"].linked)
    assert {f"{name}.html" for name in files} <= linked
    # Files of code that are linked to are shown, not downloaded.
    for name in ("gallery", "keras_examples"):
        shown = [one for one in pages[f"{name}.html"].linked if "/" in one]
        assert not [one for one in shown if one.endswith((".gin", ".py"))]
    assert "run.trainer = @VAE" in as_text(site / "experiments" / "vae.html")
    # What makes the site is no part of it.
    assert not (site / "site" / "hooks.py").exists()
