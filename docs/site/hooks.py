"""Makes the pages of the site that are not files under docs/."""

import base64
import functools
import json
import pathlib
import posixpath
import re
import textwrap

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Files that pages link to, which a browser would not show.
_CODE = ("experiments/*.gin", "docs/examples/keras_examples/*.py")
_NOTEBOOK = "docs/first_run.ipynb"
# The search leaves these out: each of their parts would be a long result.
_NOT_FOUND = "---\nsearch: {exclude: true}\n---\n"
# The front page has its width to itself, see extra.css.
_WIDE = "---\nhide: [navigation, toc]\n---\n"
_TITLED_BLOCK = re.compile(
    r"^\*\*(.+?)\*\*\n\n(?:`[\w.]+`\n)?(```python\n.*?^```\n)", re.M | re.S
)
# Colors of a terminal, in what a cell has printed.
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def on_config(config):
    """Lists the pages that nav leaves out, so that none gets lost."""
    listed = set(_pages_in(config.nav))
    docs = pathlib.Path(config.docs_dir)
    found = [str(path.relative_to(docs)) for path in docs.rglob("*.md")]
    more = sorted(name for name in found if name not in listed)
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files, config):
    """Adds home, changes, the notebook, and code that is linked to."""
    for path, content in {**_made(), **_notebook()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Lets links outside of docs/ lead to a page, and puts code in tabs."""
    here = page.file.src_uri
    homes = {path: name for name, path in _sources().items()}
    base = posixpath.dirname(homes.get(here, f"docs/{here}"))

    def there(match):
        if "://" in match[1]:
            return match[1]
        source = posixpath.normpath(posixpath.join(base, match[1]))
        target = _sources().get(source, source.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here))

    return _LINK.sub(there, _with_tabs(markdown))


@functools.cache
def _sources():
    """Files of the repository that have a page, and its path."""
    code = [path for one in _CODE for path in sorted(ROOT.glob(one))]
    return {
        "docs": "index.md",
        "README.md": "index.md",
        "CHANGELOG.md": "changelog.md",
        _NOTEBOOK: "first_run.md",
        **{
            str(path.relative_to(ROOT)): str(
                path.relative_to(ROOT).with_suffix(".md")
            ).removeprefix("docs/")
            for path in code
        },
    }


def _pages_in(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, str):
                yield value
            else:
                yield from _pages_in(value)


def _made():
    """The text of each page that is not a file under docs/."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    code = {
        page: _listing(ROOT / name)
        for name, page in _sources().items()
        if name.endswith((".gin", ".py"))
    }
    return {
        "index.md": _WIDE + (ROOT / "README.md").read_text(),
        "changelog.md": f"{_NOT_FOUND}{changes}",
        **code,
    }


def _notebook():
    """The page of the notebook, with what is saved in it, and its pictures."""
    page, pictures, parts = _sources()[_NOTEBOOK], {}, []
    for cell in json.loads((ROOT / _NOTEBOOK).read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for one in cell["outputs"]:
            data = {k: "".join(v) for k, v in one.get("data", {}).items()}
            lines = one.get("traceback") or [*one.get("text", ())]
            end = "\n" if "traceback" in one else ""
            text = data.get("text/plain", end.join(lines))
            if "image/png" in data:
                name = f"notebook_{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![What the cell draws]({name})")
            elif "text/html" in data:
                # Else what is no block, such as a curve, would be Markdown.
                parts.append(f"<div>{data['text/html']}</div>")
            else:
                parts.append(f"```text\n{_COLOR.sub('', text)}\n```")
    return {page: "\n\n".join(parts), **pictures}


def _with_tabs(text):
    """Makes a tab of each code block that has a title in bold above it."""

    def tab(match):
        return f'=== "{match[1]}"\n\n{textwrap.indent(match[2], "    ")}'

    return _TITLED_BLOCK.sub(tab, text)


def _listing(path):
    """A page that shows a file of code."""
    # Gin's comments and values look like those of Python.
    return f"{_NOT_FOUND}# {path.name}\n\n```python\n{path.read_text()}```\n"
