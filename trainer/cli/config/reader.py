"""Reads gin files and bindings, and remembers where each one was set.

Gin's own `parse_config_file` is not used: it keeps no line numbers, resolves
includes only relative to the working directory, and does not turn mistakes
into readable errors. The grammar is gin's.

Gin accepts the last parts of a name if they are unique. Keras has so many
names that a user's `Dense` or the plugin `EarlyStopping` would not be unique
any more. So a name means the configurable outside of Keras, if there is one;
`keras.callbacks.EarlyStopping` means the one of Keras. A name that is resolved
here is passed on in full, so that `config.gin` is unambiguous and plain gin
can read it.
"""

import os
import re
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin
from gin import config_parser
from gin.config import ConfigurableReference

from trainer.cli.config import gin_private as internals
from trainer.cli.config import paths
from trainer.cli.config.errors import (
    bad_binding,
    bad_import,
    bad_syntax,
    sentence,
)
from trainer.cli.config.gin_private import Origins
from trainer.cli.config.lint import check_references
from trainer.cli.config.names import present_name
from trainer.cli.config.values import check_values
from trainer.cli.flags import Binding
from trainer.errors import UserError, did_you_mean
from trainer.runtime.files import is_local

_LINE = re.compile(r"In (?:file \".*\"|bindings string),? line (\d+)")


def load(
    files: Iterable[str],
    bindings: Iterable[Binding] = (),
    *,
    search_path: Sequence[str] = (),
    importer: Callable[[Any, Any], None] | None = None,
) -> Origins:
    """Reads the whole configuration and locks it; bindings override files.

    Args:
        files: paths of gin files.
        bindings: those of the command line.
        search_path: further folders to search for gin files.
        importer: does an import of a gin file, in a context of gin's parser;
            `import_module` by default.

    Returns:
        Where each parameter was set.

    Raises:
        UserError: it contains a mistake; the message says where, and gives
            the nearest valid name.
    """
    reader = _Reader(search_path, importer or import_module)
    for path in files:
        reader.read_file(path)
    for binding in bindings:
        reader.read_binding(binding)
    # Before `finalize`, which would report them less clearly.
    check_references(reader.origins)
    try:
        gin.finalize()
    except ValueError as error:
        raise UserError(sentence(error)) from None
    check_values(reader.origins)
    return reader.origins


def check_syntax(
    files: Iterable[str],
    bindings: Iterable[Binding] = (),
    *,
    search_path: Sequence[str] = (),
) -> None:
    """Reads the whole configuration and does nothing that it says.

    Raises:
        UserError: there is no such file, or it is not gin.
    """
    reader = _SyntaxReader(search_path, import_module)
    for path in files:
        reader.read_file(path)
    for binding in bindings:
        reader.read_binding(binding)


class _Reader:
    """Parses statements one by one, binds them, and records their origins."""

    def __init__(
        self, search_path: Sequence[str], importer: Callable[[Any, Any], None]
    ) -> None:
        self.origins: Origins = {}
        self.delegate: type[gin.config.ParserDelegate] = _Delegate
        self._importer = importer
        self._search_path = search_path
        self._open: list[str] = []

    def read_file(self, path: str, *, included_by: str = "") -> None:
        text = paths.read(path, included_by=included_by)
        # Two names of one file would be opened in turn without end.
        path = os.path.normpath(path) if is_local(path) else path
        if path in self._open:
            chain = " -> ".join([*self._open, path])
            raise UserError(f"Gin files include each other: {chain}.")
        # A stack of the files being read, to find cycles and to resolve
        # relative includes.
        self._open.append(path)
        self._read_text(text, path)
        self._open.pop()

    def read_binding(self, binding: Binding) -> None:
        self._read_text(binding.text, binding.source, lines=False)
        owner, _, name = (binding.parameter or "").partition(".")
        if owner == "Trainer":
            self._override_subclasses(name, binding.source)

    def _override_subclasses(self, name: str, source: str) -> None:
        """Lets a flag override the binding of a Trainer subclass, too."""
        # In a gin file the binding of a subclass wins over `Trainer.x`. A flag
        # binds `Trainer.x`, too, but must win over everything.
        value = gin.query_parameter(f"trainer.Trainer.{name}")
        for (scope, selector), values in internals.bindings().items():
            target = internals.wrapped(selector)
            if name in values and internals.is_trainer(target):
                gin.bind_parameter((scope, selector, name), value)
                self.origins[scope, selector, name] = source

    def _read_text(self, text: str, source: str, *, lines: bool = True) -> None:
        def where(line: int | None) -> str:
            return f"{source}, line {line}" if lines and line else source

        with internals.parse_scope() as context:
            parser = _parser(text, where, self.delegate)
            while True:
                statement = _next(parser, where)
                if statement is None:
                    break
                self._apply(
                    statement, context, where(statement.location.line_num)
                )
            internals.record_imports(context)

    def _apply(self, statement: Any, context: Any, where: str) -> None:
        if isinstance(statement, config_parser.BindingStatement):
            self._bind(statement, where)
        elif isinstance(statement, config_parser.ImportStatement):
            _import(statement, context, where, self._importer)
        elif isinstance(statement, config_parser.IncludeStatement):
            self._include(statement.filename, where)
        else:
            # A block, `NAME:`. Its bindings follow as statements of their own.
            _resolve(statement.selector, where)

    def _bind(self, statement: Any, where: str) -> None:
        scope, selector, name = statement[:3]
        # Gin stores the macro `NAME = VALUE` as `NAME/gin.macro.value`.
        if not name:
            scope = f"{scope}/{selector}" if scope else selector
            selector, name = internals.MACRO, "value"
        selector = _resolve(selector, where)
        try:
            key = gin.config.ParsedBindingKey.parse((scope, selector, name))
            gin.bind_parameter(key, statement.value)
        except (ValueError, NameError, AttributeError) as error:
            raise bad_binding(error, selector, name, where) from None
        full = key.complete_selector
        if _is_mistyped(full, name):
            raise bad_binding(None, full, name, where)
        self.origins[scope, full, name] = where

    def _include(self, filename: str, where: str) -> None:
        folder = os.path.dirname(self._open[-1]) if self._open else ""
        path = paths.locate(
            filename, self._search_path, folder=folder, included_by=where
        )
        self.read_file(path, included_by=where)


class _SyntaxReader(_Reader):
    """Parses statements; of what they say, follows includes only."""

    def __init__(
        self, search_path: Sequence[str], importer: Callable[[Any, Any], None]
    ) -> None:
        super().__init__(search_path, importer)
        self.delegate = _NoNames

    def read_binding(self, binding: Binding) -> None:
        self._read_text(binding.text, binding.source, lines=False)

    def _apply(self, statement: Any, context: Any, where: str) -> None:
        if isinstance(statement, config_parser.IncludeStatement):
            self._include(statement.filename, where)


def _parser(
    text: str, where: Any, delegate: type[gin.config.ParserDelegate]
) -> config_parser.ConfigParser:
    try:
        return config_parser.ConfigParser(text, delegate())
    except (SyntaxError, tokenize.TokenError) as error:
        raise bad_syntax(error, where) from None


def _next(parser: config_parser.ConfigParser, where: Any) -> Any:
    """Returns the next statement, or `None` at the end."""
    try:
        return next(parser, None)
    except (SyntaxError, tokenize.TokenError) as error:
        raise bad_syntax(error, where) from None
    except RecursionError:
        line = parser.current_token.start[0]
        raise UserError(f"{where(line)}: brackets nested too deeply.") from None
    except (UserError, ValueError, NameError, AttributeError) as error:
        found = _LINE.search(str(error))
        line = int(found[1]) if found else parser.current_token.start[0]
        raise UserError(f"{where(line)}: {sentence(error)}") from None


def _resolve(selector: str, where: str) -> str:
    try:
        return _full_name(selector)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _import(
    statement: Any,
    context: Any,
    where: str,
    importer: Callable[[Any, Any], None],
) -> None:
    # `from __gin__ import ...` switches features of gin. Any other SyntaxError
    # is in the imported module, and keeps its traceback.
    feature = statement.is_from and statement.module.startswith("__gin__.")
    try:
        importer(statement, context)
    except ModuleNotFoundError as error:
        raise bad_import(error, statement.module, where) from error
    except SyntaxError as error:
        if not feature:
            raise
        raise UserError(f"{where}: {sentence(error)}") from None


def import_module(statement: Any, context: Any) -> None:
    """Does an import of a gin file, in a context of gin's parser."""
    try:
        context.process_import(statement)
    except ModuleNotFoundError as error:
        renamed = present_name(statement.module)
        absent = error.name or ""
        # If the module exists, what is missing is one that it imports.
        if renamed is None or not statement.module.startswith(absent):
            raise
        try:
            # A name from before the packages were renamed.
            context.process_import(statement._replace(module=renamed))
        except ModuleNotFoundError:
            raise error from None


def _is_mistyped(selector: str, name: str) -> bool:
    """Whether a parameter that gin accepts for `**kwargs` is a typo.

    If not all parameters are known, that takes a similar known name.
    """
    names, complete = internals.parameters(selector)
    if name in names:
        return False
    return complete or bool(did_you_mean(name, names, cutoff=0.75))


class _Delegate(gin.config.ParserDelegate):
    """Creates the references of a gin file, resolving names."""

    def configurable_reference(
        self, scoped_selector: str, evaluate: bool
    ) -> ConfigurableReference:
        """Called by gin's parser for `@scope/name` and `@scope/name()`."""
        *scopes, selector = scoped_selector.split("/")
        full = "/".join([*scopes, _full_name(selector)])
        return super().configurable_reference(full, evaluate)


class _NoNames(gin.config.ParserDelegate):
    """Makes nothing of references and macros."""

    def configurable_reference(
        self, scoped_selector: str, evaluate: bool
    ) -> None:
        """Called by gin's parser for `@scope/name` and `@scope/name()`."""

    def macro(self, name: str) -> None:
        """Called by gin's parser for `%name`."""


def _full_name(selector: str) -> str:
    """Returns a name that is unique for gin.

    Args:
        selector: the name as written, without scopes.

    Raises:
        UserError: it is unknown or ambiguous.
    """
    # Names in such a file are Python names, which gin resolves itself.
    if internals.dynamic_registration():
        return selector
    matches = internals.matching(selector)
    if len(matches) == 1:
        return selector
    if not matches and (renamed := present_name(selector)) is not None:
        matches = internals.matching(renamed)
    if not matches:
        raise UserError(
            f"there is no configurable '{selector}'."
            f"{did_you_mean(selector, _spellings(selector))} Is an import "
            "line missing?"
        )
    ours = [one for one in matches if not one.startswith("keras.")]
    if len(ours) == 1:
        return ours[0]
    choices = sorted(internals.minimal(one) for one in ours or matches)
    raise UserError(
        f"'{selector}' may mean {' or '.join(choices)}. Write one of these."
    )


def _spellings(selector: str) -> list[str]:
    """Returns all names with as many parts as the given one, to compare."""
    parts = selector.count(".") + 1
    return [
        ".".join(one.split(".")[-parts:])
        for one in internals.complete_selectors()
    ]
