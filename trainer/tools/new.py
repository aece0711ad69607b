"""`python -m trainer.tools.new NAME`: a copy of the folder `template`."""

import importlib.util
import keyword
import os
import pathlib
import re
import sys
from collections.abc import Sequence

from trainer.errors import UserError
from trainer.runtime.standard_streams import say

_HELP = """\
Writes a small project: a model, data, a Trainer, a gin file, a test, and a
pyproject.toml with entry points. It trains as it is, in a few seconds.

Usage:
  python -m trainer.tools.new NAME
      Makes the folder NAME, which must not exist. NAME is that of a Python
      package, such as my_project.
"""
_NEXT = """\
NAME/ is written. What next?
  cd NAME
  python -m pip install -e '.[test]'
  NAME --model_dir=runs/first     trains, and takes all flags of trainer
  python -m pytest
"""
_TEMPLATE = pathlib.Path(__file__).parent / "template"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"}.intersection(given):
        sys.stdout.write(_HELP)
        return 0
    try:
        if len(given) != 1 or given[0].startswith("-"):
            raise UserError(
                "Give one name: python -m trainer.tools.new my_project."
            )
        _check(given[0])
        _write(given[0])
    except (UserError, OSError) as error:
        say(f"error: {error}")
        return 2
    sys.stdout.write(_NEXT.replace("NAME", given[0]))
    return 0


def _check(name: str) -> None:
    """Refuses what cannot be a package, or would hide another one."""
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        other = re.sub(r"\W+", "_", os.path.basename(name), flags=re.ASCII)
        raise UserError(
            f"{name!r} cannot be the name of a Python package: use letters, "
            "digits and underscores, and begin with a letter."
            + (f" Did you mean {other!r}?" if other.isidentifier() else "")
        )
    if os.path.lexists(name):
        raise UserError(f"{name} exists already. Choose another name.")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise UserError(
            f"A package called {name} is installed already, and the new one "
            "would be mistaken for it. Choose another name."
        )


def _write(name: str) -> None:
    # First, so that of two commands only one continues.
    os.mkdir(name)
    for path in _TEMPLATE.rglob("*.txt"):
        # Without the suffix, which keeps the template from being code here.
        inside = str(path.relative_to(_TEMPLATE).with_suffix(""))
        inside = inside.replace("gitignore", ".gitignore")
        target = pathlib.Path(name, inside.replace("NAME", name))
        target.parent.mkdir(exist_ok=True)
        target.write_text(path.read_text().replace("NAME", name))


if __name__ == "__main__":
    sys.exit(main())
