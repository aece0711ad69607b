"""Ratchets: what imports what, how large each room is, how long five walks are.

Whoever makes a room larger raises its number here, in the same change.
"""

import ast
import graphlib
import io
import re
import tokenize

import pytest

from tests.conftest import ROOT

# From the top down. An import may only go down this list.
LAYERS = (
    *("tools", "launch", "cli", "experiment", "sidecar_evaluator"),
    *("trainer", "python", "loop", "run_options"),
    *("checkpoint", "strategy", "step", "data", "values", "runtime"),
    "errors",
)
# They gather names of all layers.
FACADES = {"__init__", "__main__", "plugin_api"}
# Lines of code: no blank lines, comments or docstrings.
MOST_LINES = {
    "trainer": 1237,
    "trainer/checkpoint": 1061,
    "trainer/cli": 1482,
    "trainer/data": 1180,
    "trainer/launch": 790,
    "trainer/loop": 2586,
    "trainer/python": 631,
    "trainer/runtime": 1327,
    "trainer/step": 4842,
    "trainer/strategy": 1929,
    "trainer/tools": 687,
    "trainer/values": 513,
    "plugins/trainer_plugins": 30,
    "plugins/trainer_plugins/callbacks": 912,
    "plugins/trainer_plugins/control_plane": 962,
    "plugins/trainer_plugins/loggers": 797,
    "plugins/trainer_plugins/strategies": 2039,
    "experiments": 852,
}
LONGEST_MODULE = 350
# Files in the numbered lists of docs/about/architecture.md.
WALKS = {
    "One step, in the order of the code": 17,
    "A learning rate: `--gin.Adam.learning_rate=0.01`": 8,
    "SIGTERM, to exit code 75": 6,
    "A lost worker, to its restart": 8,
    "A checkpoint": 7,
}
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(path):
    """How many lines of a file are code."""
    source = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def sources(folder):
    """The modules of a folder, and of those in it that have no own number."""
    own = [ROOT / name for name in MOST_LINES if name != folder]
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(
            path.is_relative_to(one)
            for one in own
            if one.is_relative_to(ROOT / folder)
        )
    ]


@pytest.mark.parametrize("folder", MOST_LINES)
def test_a_room_is_no_larger_than_it_was(folder):
    assert sum(map(code_lines, sources(folder))) <= MOST_LINES[folder]


def test_every_module_is_in_a_room_and_none_is_longer_than_it_was():
    counted = {path for folder in MOST_LINES for path in sources(folder)}
    for home in ("trainer", "plugins", "experiments"):
        for path in (ROOT / home).rglob("*.py"):
            assert path in counted
            assert code_lines(path) <= LONGEST_MODULE, path


def layer_of(module):
    """The layer of a module of the core; `None` for a facade."""
    name = (module.split(".") + ["__init__"])[1]
    return None if name in FACADES else LAYERS.index(name)


def imports_of(path):
    """The modules of the core that a file imports, also for types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{one.name}" for one in node.names]
            modules = [one for one in whole if is_module(one)]
            yield from modules or [node.module]
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def is_module(name):
    return (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()


def inner():
    """The modules of the core but for its facades, and what each imports."""
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if layer_of(name) is not None:
            yield (
                name,
                [one for one in imports_of(path) if one.startswith("trainer.")],
            )


def test_no_import_goes_up():
    for name, imported in inner():
        for one in imported:
            there = layer_of(one)
            assert there is None or there >= layer_of(name), (name, one)


def test_no_imports_make_a_circle():
    graphlib.TopologicalSorter(dict(inner())).prepare()


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_is_as_it_is_written_and_no_longer(title):
    text = (ROOT / "docs" / "about" / "architecture.md").read_text()
    (part,) = (
        one
        for one in re.split(r"^## ", text, flags=re.M)
        if one.startswith(title)
    )
    files = re.findall(r"`((?:trainer|plugins)/[\w/]+\.py)`", part)
    assert all((ROOT / name).is_file() for name in files), files
    assert 5 < len(set(files)) <= WALKS[title]
