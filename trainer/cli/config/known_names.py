"""Tells mistakes in a configuration before TensorFlow is imported.

A start keeps the facts about all configurables in the user's cache directory:
their names, their parameters, and the bounds that can be kept. The next start
of the same gin files gives gin stand-ins with these facts, and reads the
configuration with the reader that reads it later. A mistake that this finds is
one, since nothing that the facts come from has changed. Whatever is not certain
(another import, a changed module, values that are objects) is left to the start
itself, as is a configuration without a mistake.

Nothing here imports TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin

from trainer.cli import user_flags
from trainer.cli.config import gin_private as internals
from trainer.cli.config import reader
from trainer.cli.config.gin_private import Facts
from trainer.cli.config.names import present_name
from trainer.cli.config.values import checks_of
from trainer.cli.flags import Binding
from trainer.errors import UserError
from trainer.runtime.user_cache import cache_path
from trainer.strategy.names import check_strategy
from trainer.values.annotation_data import from_data, to_data
from trainer.values.configurable import Checks

_OF_TERMINAL = re.compile(
    r"_$|(OLD)?PWD$|SHLVL$|COLUMNS$|LINES$|TERM|SSH_|TMUX|WINDOWID$|XDG_SESSION"
)


def _shared(environ: Mapping[str, str]) -> list[str]:
    """What a user's module may look at, and does not differ by terminal."""
    kept = {k: v for k, v in environ.items() if not _OF_TERMINAL.match(k)}
    return sorted(f"{key}={value}" for key, value in kept.items())


_ENVIRON = _shared(os.environ)  # Now: TensorFlow adds variables.


class _UncertainError(Exception):
    """Only a start can tell."""


@dataclasses.dataclass
class _Stage:
    """What an import of a gin file has registered; the first one is without.

    Attributes:
        statement: the import, as gin writes it; `""` for what needs none.
        origin: the file of what it imports.
        facts: of the configurables, by complete selector.
        hints: their annotations by parameter, see `annotation_data`; `None`
            for one that has no such form.
    """

    statement: str
    origin: str | None
    facts: dict[str, Facts]
    hints: dict[str, dict[str, Any]]


@dataclasses.dataclass
class _Known:
    """What a start has found out.

    Attributes:
        python: its version.
        environ: a digest of its environment.
        files: when each file that the facts come from was changed.
        stages: of the start, in their order.
        strategies: the names of all strategies.
        admitted: values that were found to be valid,
            of those that only a start can check.
        has_flags: whether imported modules have flags of their own.
    """

    python: str
    environ: str
    files: dict[str, int | None]
    stages: list[_Stage]
    strategies: list[str]
    admitted: list[str]
    has_flags: bool


def find_mistakes(
    files: Sequence[str],
    bindings: Iterable[Binding],
    *,
    search_path: Sequence[str],
    is_run: bool,
) -> str | None:
    """Refuses a configuration that is certainly not valid.

    Args:
        files: paths of gin files.
        bindings: those of the command line.
        search_path: further folders to search for gin files.
        is_run: whether a strategy is made.

    Returns:
        The configuration as `gin.config_str` gives it, if it is certainly
        valid.

    Raises:
        UserError: as `reader.load` raises it.
    """
    known = _load(files)
    if known is None:
        # Alone, gin's syntax can be told.
        reader.check_syntax(files, bindings, search_path=search_path)
        return None
    stages = iter(known.stages)

    def import_known(statement: Any, context: Any) -> None:
        _stand_in(next(stages, None), statement.format(), statement.module)
        context.process_import(statement)

    with internals.scratch():
        try:
            _stand_in(next(stages), "", "")
            reader.load(
                files, bindings, search_path=search_path, importer=import_known
            )
        except UserError:
            raise
        # A start must not fail because of what only makes mistakes known
        # earlier.
        except Exception:
            return None
        run = internals.bindings().get(("", "trainer.run"), {})
        name = run.get("strategy", "auto")
        if is_run and isinstance(name, str):
            check_strategy(name, known.strategies)
        is_certain = (
            not known.has_flags
            and next(stages, None) is None
            and set(known.admitted).issuperset(_unchecked(known.stages))
        )
        return gin.config_str() if is_certain else None


class Recorder:
    """Keeps what a start finds out; see `reader.load` for the importer."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._seen: set[str] = set()
        self._is_usable = not internals.constants()
        self._stages = [self._stage("", "")]

    def import_module(self, statement: Any, context: Any) -> None:
        """Imports a module, and notes what it has registered."""
        before = internals.bindings()
        reader.import_module(statement, context)
        # Neither what code has bound nor a constant is among the facts.
        self._is_usable &= internals.bindings() == before
        self._is_usable &= not (
            internals.constants() or internals.dynamic_registration()
        )
        self._stages.append(self._stage(statement.format(), statement.module))

    def store(self, strategies: Iterable[str]) -> None:
        """Writes what was found out; that it cannot be written is no error."""
        path = _path(self._files)
        if path is None or not self._is_usable:
            return
        known = _Known(
            sys.version,
            _digest(_ENVIRON),
            _stamps(),
            self._stages,
            list(strategies),
            # Locked once it is known to be valid.
            sorted(set(_unchecked(self._stages)))
            if gin.config_is_locked()
            else [],
            bool(user_flags.modules()),
        )
        temporary = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(known), file)
            os.replace(temporary, path)

    def _stage(self, statement: str, module: str) -> _Stage:
        new = [s for s in internals.complete_selectors() if s not in self._seen]
        self._seen.update(new)
        return _Stage(
            statement,
            _origin(module),
            {one: internals.facts(one) for one in new},
            {one: dict(_hints(one)) for one in new},
        )


def _stand_in(stage: _Stage | None, statement: str, module: str) -> None:
    """Registers what an import has registered in an earlier start."""
    if (
        stage is None
        or present_name(module)
        or stage.statement != statement
        or stage.origin != _origin(module)
    ):
        raise _UncertainError
    for selector, facts in stage.facts.items():
        hints = {k: v for k, v in stage.hints[selector].items() if v}
        checks = Checks(
            selector,
            lambda hints=hints: {k: from_data(v) for k, v in hints.items()},  # type: ignore[misc]
        )
        internals.register_stand_in(selector, facts, checks)


def _unchecked(stages: Sequence[_Stage]) -> Iterator[str]:
    """Yields the bindings whose values cannot be checked by stand-ins."""
    hints = {k: v for stage in stages for k, v in stage.hints.items()}
    for (scope, selector), values in internals.bindings().items():
        for name, value in values.items():
            references = list(internals.references(value))
            known = hints.get(selector, {})
            if name in known and (references or known[name] is None):
                # The same reference may mean another value later.
                macros = [
                    repr(internals.bindings().get(one.config_key))
                    for one in references
                    if one.config_key[1] == internals.MACRO
                ]
                yield f"{scope}/{selector}.{name} = {value!r} {macros}"


def _hints(selector: str) -> Iterator[tuple[str, Any]]:
    """Yields the annotations as data; `None` for what has no such form."""
    checks = checks_of(selector)
    for name, hint in ({} if checks is None else checks.types).items():
        try:
            yield name, to_data(hint)
        except ValueError:
            yield name, None


def _path(files: Sequence[str]) -> str | None:
    start = [sys.prefix, *sys.path, os.getcwd(), *files]
    return cache_path("names", f"{_digest(start)}.json")


def _digest(parts: Sequence[str]) -> str:
    # Names of files may not be valid text, which JSON escapes.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _load(files: Sequence[str]) -> _Known | None:
    path = _path(files)
    try:
        if path is None:
            return None
        with open(path, encoding="utf-8") as file:
            known = _Known(**json.load(file))
        known.stages = [
            _Stage(**stage)  # type: ignore[arg-type]
            for stage in known.stages
        ]
        for stage in known.stages:
            stage.facts = {k: Facts(*v) for k, v in stage.facts.items()}
        is_same = (known.python, known.environ) == (
            sys.version,
            _digest(_ENVIRON),
        ) and all(_stamp(one) == stamp for one, stamp in known.files.items())
    # It is a cache: whatever is wrong with it, it is written again.
    except Exception:
        return None
    return known if is_same else None


def _stamps() -> dict[str, int | None]:
    """Says when each folder that is searched, and each module, was changed.

    For what an installer has installed the folder does: it would change it.
    """
    installed = [one for one in sys.path if one.endswith("-packages")]
    own = (*installed, sysconfig.get_paths()["stdlib"])
    # Not by `getattr`, at which some modules import themselves.
    modules = [vars(m) for m in [*sys.modules.values()] if inspect.ismodule(m)]
    files = [module.get("__file__") for module in modules]
    given = [one for one in files if one and not one.startswith(own)]
    return {one: _stamp(one) for one in (*sys.path, *given)}


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _origin(module: str) -> str | None:
    """Returns the file of the package that a module is in."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin
