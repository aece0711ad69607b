"""Makes the pages of the site that are not files under docs/."""

import ast
import configparser
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Relative to docs/, as `on_page_markdown` finds them there.
HOME, CHANGES = ROOT / "README.md", ROOT / "CHANGELOG.md"
# Files that pages link to, which a browser would not show.
_CODE = ("experiments/*.gin", "docs/keras_examples/*.py")
_LINK_TO_CODE = re.compile(r"\]\((?:\.\./)?(\w+/\w+)\.(?:gin|py)\)")


def on_config(config):
    """Lists the pages that nav leaves out, so that none gets lost."""
    listed = set(_pages_in(config.nav))
    docs = pathlib.Path(config.docs_dir)
    more = [p.name for p in sorted(docs.glob("*.md")) if p.name not in listed]
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files, config):
    """Adds home, changes, code that is linked to, and the API."""
    made = {
        "index.md": _as_page(HOME),
        # Each of its sections would be a long result, before the guides.
        "changelog.md": f"---\nsearch: {{exclude: true}}\n---\n"
        f"{_as_page(CHANGES)}",
        "api/trainer.md": _api("API", "trainer/__init__.py"),
        "api/plugin_api.md": _api("API for plugins", "trainer/plugin_api.py"),
        "api/strategies.md": _plugins("Strategies", "strategies"),
        "api/callbacks.md": _plugins("Callbacks", "callbacks"),
        "api/loggers.md": _plugins("Loggers", "loggers"),
    }
    for pattern in _CODE:
        for path in sorted(ROOT.glob(pattern)):
            made[f"{path.parent.name}/{path.stem}.md"] = _listing(path)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, **_):
    """Lets links to what is outside of docs/ lead to its page."""
    markdown = markdown.replace("](../README.md", "](index.md").replace(
        "](../CHANGELOG.md", "](changelog.md"
    )
    return _LINK_TO_CODE.sub(r"](\1.md)", markdown)


def _pages_in(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, str):
                yield value
            else:
                yield from _pages_in(value)


def _as_page(path):
    """A file of the top level, whose links begin there."""
    return (
        path.read_text()
        .replace("](docs/", "](")
        .replace("](CHANGELOG.md)", "](changelog.md)")
    )


def _listing(path):
    """A page that shows a file of code."""
    # Gin's comments and values look like those of Python.
    return f"# {path.name}\n\n```python\n{path.read_text()}```\n"


def _api(title, path):
    """What a module exports under `if TYPE_CHECKING`, by its docstrings."""
    tree = ast.parse((ROOT / path).read_text())
    homes = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    entries = [f"::: {homes[name]}.{name}" for name in sorted(homes)]
    return _page(title, ast.get_docstring(tree), entries)


def _plugins(title, folder):
    """The plugins of a folder, as they are registered."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["trainer.plugins"].split("\n")
    found = [line.partition("=")[2].strip() for line in lines]
    entries = [
        f"::: {one.replace(':', '.')}"
        for one in sorted(found, key=lambda one: one.rpartition(":")[2].lower())
        if one.startswith(f"trainer_plugins.{folder}.")
    ]
    text = "Their parameters, with all valid values, are in the "
    text += "[configuration reference](../parameters.md)."
    # What they inherit is in the API for plugins, and they override.
    return _page(title, text, entries, members=False)


def _page(title, text, entries, *, members=True):
    options = "    options:\n      heading_level: 2"
    if not members:
        options += "\n      members: false\n      inherited_members: false"
    blocks = "\n\n".join(f"{entry}\n{options}" for entry in entries)
    return f"# {title}\n\n{text}\n\n{blocks}\n"
