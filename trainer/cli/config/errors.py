"""One-sentence errors for the lines of a gin file."""

import importlib
import pkgutil
import re
import tokenize
from collections.abc import Callable

from trainer.cli.config import gin_private as internals
from trainer.cli.flag_table import FLAGS
from trainer.errors import UserError, did_you_mean

# Gin appends this to the message of an exception that passes through it.
_ADDED = re.compile(
    r"\n  (?:In (?:file|bindings string|call to configurable)|No values)"
)
_TOKEN = re.compile(r"Failed to parse token '(.*)'", re.DOTALL)
_MOST = 300


def sentence(error: BaseException) -> str:
    """Returns an exception's message on one line, without gin's additions."""
    text = " ".join(_ADDED.split(str(error))[0].split())
    text = text or type(error).__name__
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def plain(error: BaseException) -> str:
    """Returns an exception's message without gin's additions."""
    return _ADDED.split(str(error))[0].strip()


def bad_syntax(
    error: SyntaxError | tokenize.TokenError, where: Callable[[int | None], str]
) -> UserError:
    """Returns the error for a syntax error in gin text."""
    if isinstance(error, tokenize.TokenError):
        what, (line, _) = error.args
        return UserError(
            f"{where(line)}: {what}: a bracket or quote is not closed."
        )
    token = _TOKEN.search(str(error.msg))
    if token:
        what = (
            f"{token[1]} is not a value. A string needs quotes ('{token[1]}'), "
            f"a configurable an @, a macro a %."
        )
        return UserError(f"{where(error.lineno)}: {what}")
    text = (error.text or "").strip()
    what = str(error.msg).split("\n")[0].rstrip(".")
    shown = f" in: {text}" if text else "."
    return UserError(f"{where(error.lineno)}: {what}{shown}")


def bad_binding(
    error: Exception | None, selector: str, name: str, where: str
) -> UserError:
    """Returns the error for a parameter that cannot be bound.

    Args:
        error: gin's exception; `None` if the parameter is unknown.
        selector: the configurable's name.
        name: the parameter's name.
        where: the place of the line.
    """
    if not name.isidentifier() or not selector:
        return UserError(f"{where}: write NAME.PARAMETER = VALUE.")
    if "denylisted" in str(error) or "allowlist" in str(error):
        flag = f" Use the flag --{name}." if name in FLAGS else ""
        return UserError(
            f"{where}: '{selector}.{name}' cannot be set in a gin file.{flag}"
        )
    # Gin has no exception class for this; only the message tells.
    unknown = error is None or "doesn't have a parameter" in str(error)
    matches = internals.matching(selector)
    if not unknown or len(matches) != 1:
        return UserError(f"{where}: {sentence(error or ValueError(name))}")
    names, _ = internals.parameters(matches[0])
    hint = did_you_mean(name, names, cutoff=0.5)
    listed = ", ".join(names) or "none"
    return UserError(
        f"{where}: '{internals.minimal(matches[0])}' has no parameter "
        f"'{name}'.{hint} It has: {listed}."
    )


def bad_import(
    error: ModuleNotFoundError, module: str, where: str
) -> UserError:
    """Returns the error for an import of a missing module."""
    # If the module itself exists, the error is about an import inside of it.
    absent = error.name or module
    if not (module == absent or module.startswith(f"{absent}.")):
        return UserError(
            f"{where}: import {module} needs the package '{absent}', which "
            f"is not installed (pip install {absent.split('.')[0]}, or the "
            "name that it has on PyPI)."
        )
    hint = did_you_mean(absent, _siblings(absent))
    return UserError(
        f"{where}: there is no module '{absent}'.{hint} Modules are "
        "searched for in the working directory and the installed packages."
    )


def _siblings(module: str) -> list[str]:
    """Returns the modules in the same package as `module`."""
    package = module.rpartition(".")[0]
    if not package:
        return [found.name for found in pkgutil.iter_modules()]
    try:
        paths = importlib.import_module(package).__path__
    except (ImportError, AttributeError):
        return []
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(paths)]
