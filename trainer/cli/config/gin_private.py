"""Wrappers of gin's private names.

Written against gin-config 0.5.0. All private names are used here only, so that
a new release of gin affects a single file.
"""

import contextlib
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from gin import config as gin_config

# Scope and complete selector.
Key = tuple[str, str]
# Parameters and their values.
Bindings = dict[Key, dict[str, Any]]
# Where each (scope, complete selector, parameter) was last set.
Origins = dict[tuple[str, str, str], str]

MACRO = "gin.macro"


@contextlib.contextmanager
def without_methods() -> Iterator[None]:
    """Registers classes without a look at whether methods are registered.

    That look is most of what it takes to register the 276 classes of Keras.
    """
    look = gin_config._find_registered_methods
    gin_config._find_registered_methods = lambda *_: {}
    try:
        yield
    finally:
        gin_config._find_registered_methods = look


def bindings() -> Bindings:
    """Returns all bindings; values may contain references."""
    # A copy, because the reader binds parameters while it iterates.
    return dict(gin_config._CONFIG)


def operative() -> Bindings:
    """Returns the parameters that calls have used so far, by active scope."""
    # Data plugins may call configurables on other threads meanwhile.
    with gin_config._OPERATIVE_CONFIG_LOCK:
        return {
            key: dict(values)
            for key, values in gin_config._OPERATIVE_CONFIG.items()
        }


def enclosing(scope: str) -> list[str]:
    """Returns the scope and those around it, the outermost first."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def matching(selector: str) -> list[str]:
    """Returns the complete selectors that match a partial one."""
    return list(gin_config._REGISTRY.matching_selectors(selector))


def minimal(complete_selector: str) -> str:
    """Returns the shortest unique name of a configurable."""
    return str(gin_config._REGISTRY.minimal_selector(complete_selector))


def complete_selectors() -> list[str]:
    """Returns the selectors of all configurables."""
    return [selector for selector, _ in gin_config._REGISTRY.items()]


def wrapped(complete_selector: str) -> Any:
    """Returns the function or class behind a configurable."""
    return gin_config._REGISTRY[complete_selector].wrapped


def selector_of(function_or_class: Any) -> str | None:
    """Returns the complete selector of a configurable, or `None`."""
    # Gin knows the original, and not its own wrapper.
    found = gin_config._INVERSE_REGISTRY.get(inspect.unwrap(function_or_class))
    return None if found is None else str(found.selector)


def references(value: Any) -> Iterator[Any]:
    """Yields the references in a value, with their `config_key`."""
    return gin_config.iterate_references(value)


def parse_scope() -> AbstractContextManager[Any]:
    """Returns a context manager for the imports of one file."""
    return gin_config._parse_scope()


def record_imports(context: Any) -> None:
    """Adds a file's imports to `gin.config_str()`."""
    # As `gin.parse_config` does after each file.
    gin_config._IMPORTS.update(context.imports)


def dynamic_registration() -> bool:
    """Returns whether names in the current file are Python names."""
    return bool(gin_config._parse_context()._dynamic_registration)


def parameters(complete_selector: str) -> tuple[list[str], bool]:
    """Returns the parameters of a configurable.

    Returns:
        Their names, including those of base classes that `**kwargs` reaches;
        and whether the list is complete. It is not if `**kwargs` is passed on
        to something unknown, or to Keras, which silently accepts old names.
    """
    return parameters_of(wrapped(complete_selector))


def parameters_of(target: Any) -> tuple[list[str], bool]:
    """Returns the parameters of a function or class; see `parameters`."""
    if not inspect.isclass(target):
        return _of_signature(target)
    names: list[str] = []
    closed = True
    # `**kwargs` usually goes to the next constructor in this order.
    for base in inspect.getmro(target):
        if "__init__" not in vars(base) or base is object:
            continue
        closed = closed and (base is target or not _is_keras(base))
        more, complete = _of_signature(vars(base)["__init__"])
        names += [name for name in more if name not in ("self", *names)]
        if complete:
            return names, closed
    # Not at the top: it takes seconds, and not every caller needs it.
    import keras

    # These refuse what they do not know, but for what they ignore.
    return names, issubclass(target, keras.optimizers.Optimizer)


def _is_keras(target: type) -> bool:
    return target.__module__.split(".")[0] == "keras"


def _of_signature(function: Any) -> tuple[list[str], bool]:
    found = inspect.signature(function).parameters.values()
    names = [
        p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return names, not any(p.kind is p.VAR_KEYWORD for p in found)
