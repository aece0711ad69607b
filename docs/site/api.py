"""Makes the pages of the API from the code: one for each class."""

import ast
import configparser
import pathlib

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Pages that answer a question come before these, which have the same words.
_HEAD = "---\nsearch: {boost: 0.1}\n---\n"
# The exports of `trainer` that are for authors of plugins.
_OF_PLUGINS = (
    *("StrategyPlugin", "Logger"),
    *("Batches", "DatasetBatches", "IndexedBatches"),
)
# What the framework calls, and users neither call nor override.
_INNER = (
    *("gradient_sums", "reduce_gradients", "batches"),
    *("before_end", "on_final_log", "only_watches", "runs_last"),
    *("check_cut", "last_size", "learn_length", "read_named", "rows_of"),
    *("why_not_stacked", "without", "arrays", "on_values", "writes", "where"),
)
_OPTIONS = f"""\
    options:
      heading_level: 1
      summary: true
      filters: ["!^_", "!^({"|".join(_INNER)})$"]
"""
# What a plugin overrides is in the API for plugins.
_OF_A_PLUGIN = """\
    options:
      heading_level: 1
      members: false
      inherited_members: false
"""


def on_config(config):
    """Gives the pages their places under Reference, Trainer first."""
    (reference,) = (one for one in config.nav if "Reference" in one)
    classes = {name: f"api/{name}.md" for name in _pages()}
    groups = [{"Trainer": classes.pop("Trainer")}]
    groups.append({"Functions and errors": "api/functions.md"})
    named = {"Strategies": "strategies", "Callbacks": "callbacks"}
    for title, folder in {**named, "Loggers": "loggers"}.items():
        found = [{one: classes.pop(one)} for one in sorted(_plugins(folder))]
        groups.append({title: found})
    more = [{one: classes.pop(one)} for one in _OF_PLUGINS]
    more.append({"trainer.plugin_api": "api/plugin_api.md"})
    others = [{name: path} for name, path in classes.items()]
    groups.insert(1, {"Other classes": others})
    groups.append({"For plugin authors": more})
    reference["Reference"] = [*groups, *reference["Reference"]]
    return config


def on_files(files, config):
    """Adds a page for each class, and one each for what is small."""
    made = {f"api/{name}.md": text for name, text in _pages().items()}
    made["api/functions.md"] = _together("Functions and errors", _small())
    made["api/plugin_api.md"] = _together(
        "trainer.plugin_api", _exports("trainer/plugin_api.py")
    )
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def _pages():
    """The page of each class, by the name of the class."""
    exports = _exports("trainer/__init__.py")
    classes = sorted(exports.keys() - _small().keys())
    # The one that a reader looks for.
    classes.sort(key=lambda name: name != "Trainer")
    pages = {name: _page(exports[name], _OPTIONS) for name in classes}
    for folder in ("strategies", "callbacks", "loggers"):
        for name, path in _plugins(folder).items():
            text = (
                f"In a gin file it is `{name}`; valid values are in the "
                "[table of parameters](../reference/parameters.md).\n"
            )
            pages[name] = f"{_page(path, _OF_A_PLUGIN)}\n{text}"
    return pages


def _small():
    """Functions and errors, which share a page."""
    return {
        name: path
        for name, path in _exports("trainer/__init__.py").items()
        if name[0].islower() or path.startswith("trainer.errors.")
    }


def _page(path, options):
    return f"{_HEAD}\n::: {path}\n{options}"


def _together(title, paths):
    options = "    options: {heading_level: 2}\n"
    entries = [f"::: {paths[name]}\n{options}" for name in sorted(paths)]
    return "\n".join([f"{_HEAD}# {title}\n", *entries])


def _exports(path):
    """What a module exports under `if TYPE_CHECKING`, and from where."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        alias.name: f"{node.module}.{alias.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _plugins(folder):
    """The plugins of a folder, as they are registered."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["trainer.plugins"].split("\n")
    paths = [line.partition("=")[2].strip().replace(":", ".") for line in lines]
    return {
        path.rpartition(".")[2]: path
        for path in paths
        if path.startswith(f"trainer_plugins.{folder}.")
    }
