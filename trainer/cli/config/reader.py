"""Reads gin files and bindings, and keeps where each parameter was set.

The grammar and the names are gin's. Its own `parse_config_file` keeps no lines,
resolves includes relative to the working directory only, and follows files that
include each other without end.
"""

import importlib
import os
import pkgutil
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gin
from gin.config_parser import (
    BindingStatement,
    ConfigParser,
    ImportStatement,
    IncludeStatement,
)

from trainer.cli.config import gin_private, paths
from trainer.cli.config.gin_private import BOUND, REGISTRY, Origins
from trainer.cli.config.names import (
    sentence,
    why_mistyped,
    why_unbound,
    why_unknown,
)
from trainer.cli.flags import Binding
from trainer.errors import UserError, did_you_mean
from trainer.runtime.files import is_local

_LINE = re.compile(r"In (?:file \".*\"|bindings string),? line (\d+)")
_TOKEN = re.compile(r"Failed to parse token '(.*)'", re.DOTALL)
# What gin raises for a name that it cannot resolve.
_UNRESOLVED = (ValueError, KeyError, NameError, AttributeError)


def load(
    files: Iterable[str],
    bindings: Iterable[Binding] = (),
    *,
    search_path: Sequence[str] = (),
) -> Origins:
    """Reads the whole configuration and locks it; bindings override files.

    Args:
        files: paths of gin files.
        bindings: those of the command line.
        search_path: further folders to search for gin files.

    Returns:
        Where each parameter was set.

    Raises:
        UserError: it contains a mistake; the message says where, and gives
            the nearest valid name.
    """
    # Not at the top, because this imports Keras.
    from trainer.cli.config.checks import check

    reader = _Reader(search_path)
    reader.read(files, bindings)
    check(reader.origins)
    try:
        gin.finalize()
    except ValueError as error:
        raise UserError(sentence(error)) from None
    return reader.origins


class _Reader:
    """Reads statement by statement, binds, and keeps the origins."""

    def __init__(self, search_path: Sequence[str]) -> None:
        self.origins: Origins = {}
        self._search_path = search_path
        # A stack of the files being read.
        self._open: list[str] = []

    def read(self, files: Iterable[str], bindings: Iterable[Binding]) -> None:
        for path in files:
            self._read_file(path, folder="")
        for binding in bindings:
            self._read_text(binding.text, binding.source, by_line=False)
            owner, _, name = binding.parameter.partition(".")
            if owner == "Trainer":
                self._override_subclasses(name, binding.source)

    def _read_file(
        self, path: str, *, folder: str, included_by: str = ""
    ) -> None:
        path = paths.locate(
            path, self._search_path, folder=folder, included_by=included_by
        )
        # Two names of one file would be opened in turn without end.
        path = os.path.normpath(path) if is_local(path) else path
        if path in self._open:
            chain = " -> ".join([*self._open, path])
            raise UserError(f"Gin files include each other: {chain}.")
        self._open.append(path)
        self._read_text(paths.read(path), path)
        self._open.pop()

    def _read_text(
        self, text: str, source: str, *, by_line: bool = True
    ) -> None:
        def where(line: int) -> str:
            return f"{source}, line {line}" if by_line else source

        with gin_private.parse_scope() as context:
            for statement in _parsed(text, where):
                self._apply(
                    statement, context, where(statement.location.line_num)
                )
            gin_private.IMPORTS.update(context.imports)

    def _apply(self, statement: Any, context: Any, where: str) -> None:
        if isinstance(statement, BindingStatement):
            self._bind(statement, where)
        elif isinstance(statement, ImportStatement):
            _import(statement, context, where)
        elif isinstance(statement, IncludeStatement):
            folder = os.path.dirname(self._open[-1]) if self._open else ""
            path = statement.filename
            self._read_file(path, folder=folder, included_by=where)
        # Else a block, `NAME:`, whose bindings follow with that name.

    def _bind(self, statement: BindingStatement, where: str) -> None:
        scope, selector, name, value, _ = statement
        # Gin stores the macro `NAME = VALUE` as `NAME/gin.macro.value`.
        if not name:
            scope = f"{scope}/{selector}" if scope else selector
            selector, name = gin_private.MACRO, "value"
        try:
            key = gin.config.ParsedBindingKey.parse((scope, selector, name))
        except _UNRESOLVED as error:
            why = why_unbound(selector, name, error)
            raise UserError(f"{where}: {why}") from None
        if why := why_mistyped(key.complete_selector, name):
            raise UserError(f"{where}: {why}")
        gin.bind_parameter(key, value)
        self.origins[key.scope_selector_arg] = where

    def _override_subclasses(self, name: str, source: str) -> None:
        """Lets a flag override the binding of a Trainer subclass, too."""
        # Not at the top, because it imports TensorFlow.
        from trainer.trainer import Trainer

        # In a gin file the binding of a subclass wins over `Trainer.x`. A flag
        # binds `Trainer.x`, too, but must win over everything.
        value = gin.query_parameter(f"trainer.Trainer.{name}")
        for (scope, selector), values in BOUND.items():
            target = REGISTRY[selector].wrapped
            is_trainer = isinstance(target, type) and issubclass(
                target, Trainer
            )
            if name in values and is_trainer:
                values[name] = value
                self.origins[scope, selector, name] = source


class _Names(gin.config.ParserDelegate):
    """Makes references; a name that is not known is an error."""

    def configurable_reference(
        self, scoped_selector: str, evaluate: bool
    ) -> gin.config.ConfigurableReference:
        """Called by gin's parser for `@scope/name` and `@scope/name()`."""
        try:
            return super().configurable_reference(scoped_selector, evaluate)
        except _UNRESOLVED as error:
            name = scoped_selector.rpartition("/")[2]
            raise UserError(why_unknown(name, error)) from None


def _parsed(text: str, where: Callable[[int], str]) -> Iterator[Any]:
    """Yields the statements of a text.

    Raises:
        UserError: it is not gin, or names what is not known.
    """
    parser = None
    try:
        parser = ConfigParser(text, _Names())
        yield from parser
    except tokenize.TokenError as error:
        what, (line, _) = error.args
        raise UserError(
            f"{where(line)}: {what}: a bracket or quote is not closed."
        ) from None
    except SyntaxError as error:
        place = where(error.lineno or 1)
        raise UserError(f"{place}: {_syntax(error)}") from None
    except RecursionError:
        line = parser.current_token.start[0] if parser else 1
        raise UserError(f"{where(line)}: brackets nested too deeply.") from None
    except (UserError, *_UNRESOLVED) as error:
        found = _LINE.search(str(error))
        at = parser.current_token.start[0] if parser else 1
        place = where(int(found[1]) if found else at)
        raise UserError(f"{place}: {sentence(error)}") from None


def _syntax(error: SyntaxError) -> str:
    token = _TOKEN.search(str(error.msg))
    if token:
        return (
            f"{token[1]} is not a value. A string needs quotes ('{token[1]}'), "
            "a configurable an @, a macro a %."
        )
    text = (error.text or "").strip()
    what = str(error.msg).split("\n")[0].rstrip(".")
    return f"{what} in: {text}" if text else f"{what}."


def _import(statement: ImportStatement, context: Any, where: str) -> None:
    try:
        context.process_import(statement)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{where}: {_why_missing(statement.module, error.name)}"
        ) from error
    except SyntaxError as error:
        # `from __gin__ import ...` switches features of gin. Any other one is
        # in the imported module, and keeps its traceback.
        if not statement.module.startswith("__gin__."):
            raise
        raise UserError(f"{where}: {sentence(error)}") from None


def _why_missing(module: str, missing: str | None) -> str:
    absent = missing or module
    # If the module itself exists, what is missing is one that it imports.
    if not (module == absent or module.startswith(f"{absent}.")):
        return (
            f"import {module} needs the package '{absent}', which is not "
            f"installed (pip install {absent.split('.')[0]}, or its name on "
            "PyPI)."
        )
    package = absent.rpartition(".")[0]
    try:
        path = importlib.import_module(package).__path__ if package else None
    except (ImportError, AttributeError):
        path = []
    prefix = f"{package}." if package else ""
    known = [f"{prefix}{found.name}" for found in pkgutil.iter_modules(path)]
    return (
        f"there is no module '{absent}'.{did_you_mean(absent, known)} Modules "
        "are searched for in the working directory and the installed packages."
    )
