"""`python -m trainer.new NAME`: from the command line to files."""

import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Sequence

from trainer.cli.flag_table import HELP_FLAGS
from trainer.errors import EXIT_DONE, EXIT_USER_ERROR, UserError
from trainer.new.project import files_of
from trainer.runtime import files

_HELP = """\
Writes a small project: a model, data, a Trainer, a gin file, a test, and a
pyproject.toml with entry points. It trains as it is, in a few seconds.

Usage:
  python -m trainer.new NAME
      Makes the folder NAME, which must not exist. NAME is that of a Python
      package, such as my_project.

Exit codes: 0 done; 2 a mistake in the name, or the folder cannot be written.
"""
_NEXT = """\
{name}/ is written. What next?
  cd {name}
  python -m pip install -e '.[test]'
  {name} --model_dir=runs/first     trains, and takes all flags of trainer
  python -m pytest
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if HELP_FLAGS.intersection(given):
        sys.stdout.write(_HELP)
        return EXIT_DONE
    try:
        if len(given) != 1 or given[0].startswith("-"):
            raise UserError("Give one name: python -m trainer.new my_project.")
        _check(given[0])
        _write(given[0])
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    sys.stdout.write(_NEXT.format(name=given[0]))
    return EXIT_DONE


def _check(name: str) -> None:
    """Refuses what cannot be a package, or would hide another one."""
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        other = re.sub(r"\W+", "_", os.path.basename(name), flags=re.ASCII)
        hint = ""
        if other.isidentifier() and not keyword.iskeyword(other):
            hint = f" Did you mean {other!r}?"
        raise UserError(
            f"{name!r} cannot be the name of a Python package: use letters, "
            f"digits and underscores, and begin with a letter.{hint}"
        )
    if os.path.lexists(name):
        raise UserError(f"{name} exists already. Choose another name.")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise UserError(
            f"A package called {name} is installed already, and the new one "
            "would be mistaken for it. Choose another name."
        )


def _write(name: str) -> None:
    try:
        # First, so that of two commands only one goes on.
        os.mkdir(name)
        for path, text in files_of(name).items():
            full = os.path.join(name, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with files.create(full) as file:
                file.write(text.encode())
    except OSError as error:
        raise UserError(
            f"{name} cannot be written: {error.strerror}."
        ) from None
