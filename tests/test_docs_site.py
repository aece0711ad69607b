"""The site is built by its command, is complete, and loads nothing."""

import html
import html.parser
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.site_questions import QUESTIONS

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
    return build(tmp_path_factory.mktemp("site"))


def build(where):
    """Builds the site strictly into a folder."""
    pytest.importorskip("material", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
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
    docs = ROOT / "docs"
    files = [
        str(path.relative_to(docs).with_suffix(""))
        for path in docs.rglob("*.md")
    ]
    for name in (*files, "index", "changelog"):
        assert f"{name}.html" in pages, name
    # Each can be reached from the first one, and has a place in the menu.
    linked = set(pages["index.html"].linked)
    assert {f"{name}.html" for name in files} <= linked
    assert ">More<" not in (site / "index.html").read_text()
    # Files of code that are linked to are shown, not downloaded.
    for name in ("gallery", "keras_examples"):
        shown = pages[f"examples/{name}.html"].linked
        assert not [one for one in shown if one.endswith((".gin", ".py"))]
    assert "run.trainer = @VAE" in as_text(site / "experiments" / "vae.html")
    # What makes the site is no part of it.
    assert not (site / "site" / "hooks.py").exists()


def test_questions_are_in_the_menu_of_the_front_page(pages):
    """So each is two clicks away: a section, then a page in it."""
    linked = set(pages["index.html"].linked)
    assert {f"{page}.html" for page in QUESTIONS.values()} <= linked


def test_each_page_begins_with_its_question(site):
    for page in QUESTIONS.values():
        text = (site / f"{page}.html").read_text()
        (title,) = re.findall(r"<h1.*?</h1>", text, re.S)
        assert "?" in title or "Coming from" in title, title


def test_the_notebook_is_a_page_with_what_it_shows(site, pages):
    page = pages["first_run.html"]
    assert "notebook_1.png" in page.loaded
    assert (site / "notebook_1.png").read_bytes()[:4] == b"\x89PNG"
    text = (site / "first_run.html").read_text()
    assert "<th>val_accuracy</th>" in text
    assert text.count("<polyline ") == 2
    assert "UserError: y has shape" in as_text(site / "first_run.html")
    assert "scale/strategies.html" in page.linked
    # No copy for a download is linked to.
    for one in ("index.html", "start/first_run.html"):
        assert not [x for x in pages[one].linked if x.endswith(".ipynb")]


def test_code_is_in_tabs(site):
    text = (site / "index.html").read_text()
    assert 'class="tabbed-set' in text
    assert "**Trainer**" not in text
