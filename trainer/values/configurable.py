"""`configurable`: gin's, with checks of every argument.

An argument is checked against its annotation where the function or class is
called, be it by gin or by Python. The function gets the very objects that it
was given.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import gin

from trainer.errors import UserError, nearest
from trainer.values.checks import check
from trainer.values.words import plain_type, shown

T = TypeVar("T", bound=Callable[..., Any])

# Where a checked function keeps what gives its annotations.
_TYPES = "__checked_types__"
# Where an object keeps what its constructor was given.
_GIVEN = "_constructed_with"


class ShowsArguments:
    """Whose `repr` is the call that made it: `Checkpoint(every=10)`."""

    def __repr__(self) -> str:
        takes = inspect.signature(type(self)).parameters
        # A constructor that is not `checked` is not known.
        given = "..." if takes else ""
        if _GIVEN in vars(self):
            pairs = vars(self)[_GIVEN].items()
            given = ", ".join(f"{name}={shown(v)}" for name, v in pairs)
        return f"{type(self).__name__}({given})"


def configurable(target: Any = None, **options: Any) -> Any:
    """Makes a function or class configurable by gin, and checks its arguments.

    Use it as `gin.configurable`, whose arguments it takes: with or without
    parentheses, or with another name. Annotate parameters with their bounds,
    such as `Annotated[int, annotated_types.Ge(1)]`. A parameter without an
    annotation, or with `Any`, takes everything.
    """
    if callable(target):
        return gin.configurable(checked(target), **options)
    decorate = gin.configurable(target, **options)
    return lambda given: decorate(checked(given, name=target))


def checked(target: T, *, name: str | None = None) -> T:
    """Checks the arguments of a function, or of a class's constructor.

    A call with a wrong argument raises a `UserError` that names it. A subclass
    that passes arguments on needs no checks of its own for these.

    Args:
        target: the function or class.
        name: what messages call a function; its own name by default.
    """
    if not inspect.isclass(target):
        return _checking(target, name or target.__name__)
    if "__init__" in vars(target):
        setattr(target, "__init__", _checking(vars(target)["__init__"]))  # noqa: B010
    return target


def _checking(function: Any, name: str | None = None) -> Any:
    signature = inspect.signature(function)
    # Later: a hint may name what is defined further below.
    hints = functools.cache(lambda: _hints(function))

    @functools.wraps(function)
    def check_and_call(*args: Any, **kwargs: Any) -> Any:
        owner = name or type(args[0]).__name__
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            known = [one for one in signature.parameters if one != "self"]
            unknown = [one for one in kwargs if one not in known]
            why = f": {error}."
            if unknown:
                hint = nearest(unknown[0], known)
                why = f" has no argument {unknown[0]!r}. {hint}"
            raise UserError(f"{owner}{why}") from None
        for parameter, value in given.items():
            if parameter in hints():
                check(owner, parameter, value, hints()[parameter])
        if name is None and isinstance(args[0], ShowsArguments):
            given.pop(next(iter(given)))
            # That of a subclass comes first.
            vars(args[0]).setdefault(_GIVEN, given)
        return function(*args, **kwargs)

    # Gin looks at the signature, and at what was wrapped.
    check_and_call.__signature__ = _plain(signature)  # type: ignore[attr-defined]
    del check_and_call.__wrapped__
    setattr(check_and_call, _TYPES, hints)
    return check_and_call


class _Type(str):
    """A type in words, which a signature shows without quotes."""

    __repr__ = str.__str__


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """A signature as people read it: its types, without their bounds."""

    def plain(given: Any) -> Any:
        return given if given is signature.empty else _Type(plain_type(given))

    return signature.replace(
        parameters=[
            one.replace(annotation=plain(one.annotation))
            for one in signature.parameters.values()
        ],
        return_annotation=plain(signature.return_annotation),
    )


def call_factory(make: Callable[..., Any], **given: Any) -> Any:
    """Calls a function of the user's that makes something.

    Raises:
        UserError: it cannot be called like this.
    """
    try:
        return make(**given)
    except TypeError as error:
        # Not of something inside of it.
        if error.__traceback__ and error.__traceback__.tb_next:
            raise
        raise UserError(
            f"{shown(make)} must be a function that can be called without "
            f"further arguments: {error}."
        ) from None


def _hints(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {
        name: hint
        for name, hint in get_type_hints(function, include_extras=True).items()
        # Neither what is returned, nor `*args` and `**kwargs`.
        if name in parameters
        and parameters[name].kind
        not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


def types_of(target: Any) -> dict[str, Any] | None:
    """The annotations by which arguments are checked, by parameter.

    Args:
        target: a function or class.

    Returns:
        `None` for one that is not `checked`.
    """
    function = target.__init__ if inspect.isclass(target) else target
    hints = getattr(function, _TYPES, None)
    return None if hints is None else hints()
