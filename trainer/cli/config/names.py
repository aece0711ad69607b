"""Names of configurables and of their parameters, and the nearest valid one."""

import inspect
import re
from typing import Any

from trainer.cli.config.gin_private import REGISTRY
from trainer.cli.flags import FLAGS
from trainer.errors import did_you_mean

# Gin appends this to the message of an exception that passes through it.
_ADDED = re.compile(
    r"\n  (?:In (?:file|bindings string|call to configurable)|No values)"
)
_MOST = 300


def plain(error: BaseException) -> str:
    """Returns an exception's message without gin's additions."""
    return _ADDED.split(str(error))[0].strip()


def sentence(error: BaseException) -> str:
    """Returns an exception's message on one line, without gin's additions."""
    text = " ".join(plain(error).split()) or type(error).__name__
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def minimal(selector: str) -> str:
    """Returns the shortest unique name of a configurable."""
    return str(REGISTRY.minimal_selector(selector))


def strategies_in_gin() -> set[str]:
    """Returns the complete selectors of strategy plugins."""
    # Not at the top, because it imports TensorFlow.
    from trainer.strategy.plugin import StrategyPlugin

    return {
        selector
        for selector, one in REGISTRY.items()
        if inspect.isclass(one.wrapped)
        and issubclass(one.wrapped, StrategyPlugin)
    }


def why_unknown(selector: str, error: Exception) -> str:
    """Says what is wrong with the name of a configurable.

    Args:
        selector: the name as written, without scopes.
        error: gin's, for what is neither unknown nor ambiguous.
    """
    matches = REGISTRY.matching_selectors(selector)
    if len(matches) == 1:
        return sentence(error)
    if matches:
        choices = sorted(map(minimal, matches))
        return f"'{selector}' may mean {' or '.join(choices)}. Write one."
    # As many parts of each name as were written.
    parts = selector.count(".") + 1
    known = [".".join(n.split(".")[-parts:]) for n, _ in REGISTRY.items()]
    return (
        f"there is no configurable '{selector}'."
        f"{did_you_mean(selector, known)} Is an import line missing?"
    )


def why_unbound(selector: str, name: str, error: Exception) -> str:
    """Says why gin cannot bind a parameter, with the nearest valid name."""
    matches = REGISTRY.matching_selectors(selector)
    if len(matches) != 1:
        return why_unknown(selector, error)
    # Gin has no exception classes for these; only the message tells.
    if "denylisted" in str(error) or "allowlist" in str(error):
        flag = f" Use the flag --{name}." if name in FLAGS else ""
        return f"'{selector}.{name}' cannot be set in a gin file.{flag}"
    return why_mistyped(matches[0], name) or sentence(error)


def why_mistyped(selector: str, name: str) -> str:
    """Says that a parameter is not one of a configurable's; `""` if it is.

    Gin takes any name for a constructor with `**kwargs`. Where not all of them
    are known, only a name that is similar to a known one is a mistake.
    """
    names, is_complete = parameters_of(REGISTRY[selector].wrapped)
    if name in names or not (
        is_complete or did_you_mean(name, names, cutoff=0.75)
    ):
        return ""
    return (
        f"'{minimal(selector)}' has no parameter '{name}'."
        f"{did_you_mean(name, names, cutoff=0.5)} "
        f"It has: {', '.join(names) or 'none'}."
    )


def parameters_of(target: Any) -> tuple[list[str], bool]:
    """Returns the parameters of a function or class.

    Returns:
        Their names, including those of base classes that `**kwargs` reaches;
        and whether the list is complete. It is not if `**kwargs` is passed on
        to something unknown, or to Keras, which silently accepts old names.
    """
    if not inspect.isclass(target):
        return _of_signature(target)
    names: list[str] = []
    is_closed = True
    # `**kwargs` usually goes to the next constructor in this order.
    for base in inspect.getmro(target):
        if "__init__" not in vars(base) or base is object:
            continue
        is_keras = base.__module__.split(".")[0] == "keras"
        is_closed = is_closed and (base is target or not is_keras)
        more, is_complete = _of_signature(vars(base)["__init__"])
        names += [name for name in more if name not in ("self", *names)]
        if is_complete:
            return names, is_closed
    # Not at the top: it takes seconds, and not every caller needs it.
    import keras

    # These refuse what they do not know, but for what they ignore.
    return names, issubclass(target, keras.optimizers.Optimizer)


def _of_signature(function: Any) -> tuple[list[str], bool]:
    found = inspect.signature(function).parameters.values()
    names = [
        p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return names, not any(p.kind is p.VAR_KEYWORD for p in found)
