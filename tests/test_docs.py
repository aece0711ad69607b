"""The pages under docs/, and the README, do what they say."""

import re
import shlex
import subprocess
import sys

import pytest

from tests import parameters
from tests.conftest import ROOT
from tests.sets import long
from trainer import StrategyPlugin
from trainer.strategy.registry import load_plugins


def name_of(page):
    return str(page.relative_to(ROOT))


# A block, with the file name above it if there is one.
_BLOCK = re.compile(
    r"^(?:`(?P<file>[\w./]+)`\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?P<target>[^)]+)\)")
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def blocks(page):
    return [
        (match["kind"], match["file"], match["text"])
        for match in _BLOCK.finditer(page.read_text())
    ]


def files_of(pages):
    """The files that the blocks of pages show, by their names."""
    found = [
        (file, text)
        for page in pages
        for _, file, text in blocks(page)
        if file is not None
    ]
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), sorted(names)
    return dict(found)


# Packages that are not among those of the tests.
NEEDS = {"tuners.md": ("optuna", "keras_tuner")}


def runnable():
    return [
        # What the pages show has tests of its own in the ordinary set.
        long(page)
        for page in PAGES
        if any(k == "bash" for k, *_ in blocks(page))
    ]


@pytest.mark.parametrize("page", runnable(), ids=name_of)
def test_blocks_run_in_order(page, tmp_path):
    """Named blocks are written; bash blocks are run, and must succeed."""
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    # A page may use files of the pages beside it, and says which.
    for name, text in files_of(page.parent.glob("*.md")).items():
        (tmp_path / name).write_text(text)
    for kind, _, text in blocks(page):
        if kind == "bash":
            for command in commands(text):
                done = subprocess.run(
                    command,
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                assert done.returncode == 0, text + done.stderr[-4000:]


@pytest.mark.parametrize("name", ["with_fit.py", "with_trainer.py"])
def test_the_first_code_that_is_shown_runs(name, tmp_path):
    (tmp_path / name).write_text(files_of([ROOT / "README.md"])[name])
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def commands(text):
    """The commands of a block; `python` is this one.

    Lines that only call Python are started one by one, any other block by
    the shell.
    """
    lines = text.replace("\\\n", " ").splitlines()
    if all(re.fullmatch(r"python [^|&;<>$`]+", line) for line in lines):
        return [[sys.executable, *shlex.split(line)[1:]] for line in lines]
    python = f"python() {{ '{sys.executable}' \"$@\"; }}\n"
    return [["bash", "-euo", "pipefail", "-c", python + text]]


# Tables, which are made from or compared with the code: to look things up in.
TABLES = ("docs/about/exactness.md", "docs/reference/parameters.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page):
    """A longer one is several: a question each. Code is not counted."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    assert len(text.split()) <= 1200 or name_of(page) in TABLES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_are_all_run(page):
    """A block without a name would be an example that nothing checks."""
    for kind, file, text in blocks(page):
        assert kind in ("bash", "sh", "text") or file, text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for match in _LINK.finditer(page.read_text()):
        target, _, anchor = match["target"].partition("#")
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), match["target"]
        if anchor:
            assert anchor in anchors(path), match["target"]


@pytest.mark.parametrize(
    "folder", ["trainer", "plugins", "experiments", "benchmarks", "tests"]
)
def test_pages_that_the_code_names_are_there(folder):
    for path in (ROOT / folder).rglob("*.*"):
        if path.suffix in (".py", ".gin", ".txt", ".toml"):
            for name in re.findall(r"docs/[\w/]+\.md", path.read_text()):
                assert (ROOT / name).exists(), (path, name)


def anchors(page):
    """What a heading is called in a link."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in headings]
    return {title.replace(" ", "-") for title in kept}


def test_the_front_page_says_of_each_strategy_what_has_been_run():
    text = (ROOT / "README.md").read_text()
    table = text.partition("## What has been run")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)}
    assert named == {
        one.name
        for one in load_plugins().values()
        if issubclass(one, StrategyPlugin)
        and one.__module__.startswith("trainer_plugins.")
    }


def test_the_front_page_has_the_commands_of_the_tests():
    ci = (ROOT / ".ci" / "run").read_text()
    tests = re.search(r"^step (python -m pytest .*)$", ci, re.M)[1]
    lines = (ROOT / "README.md").read_text().splitlines()
    assert tests in lines
    (install,) = (line for line in lines if "constraints.txt" in line)
    assert install == (
        "python -m pip install -e '.[cpu,test]' -c .ci/constraints.txt"
    )
    assert any("-m long" in line for line in lines)


def test_parameters_are_those_of_the_code():
    """If not, `python -m tests.parameters` writes the page again."""
    assert parameters.PATH.read_text() == parameters.page()
