"""`configurable`: gin's, with checks of every argument.

An argument is checked against its annotation where the function or class is
called, be it by gin or by Python. The checks are pydantic's, in its strict
mode: `True` is not a number and 1 is not a truth value, but a whole number
does where any number does. What pydantic makes of the arguments is thrown
away: the function gets the very objects that it was given.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import gin
import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainer.errors import BadValue, UserError, nearest
from trainer.values.annotations import LARGEST
from trainer.values.words import advice, describe, parts_of, shown

T = TypeVar("T", bound=Callable[..., Any])

# Where a checked function keeps what it checks.
_CHECKS = "__checks__"
_STRICT = ConfigDict(
    strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
)


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
    checks = Checks(lambda: _hints(function))

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
            checks.check(owner, parameter, value)
        return function(*args, **kwargs)

    # Gin looks at the signature, and at what was wrapped.
    check_and_call.__signature__ = signature  # type: ignore[attr-defined]
    del check_and_call.__wrapped__
    setattr(check_and_call, _CHECKS, checks)
    return check_and_call


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


class Checks:
    """What the parameters of a function may be given.

    Args:
        hints: returns the annotations by parameter. It is called when they are
            first needed, as a hint may name what is defined further below.
    """

    def __init__(self, hints: Callable[[], dict[str, Any]]) -> None:
        self._hints = hints

    @classmethod
    def of(cls, target: Any) -> "Checks | None":
        """Those of a function or class that is `checked`; else `None`."""
        function = target.__init__ if inspect.isclass(target) else target
        return getattr(function, _CHECKS, None)

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The annotations that can be checked, by parameter."""
        return {
            name: hint
            for name, hint in self._hints().items()
            if not any(map(_is_static, parts_of(hint)))
        }

    def check(self, owner: str, parameter: str, value: Any) -> None:
        """Checks one argument.

        Args:
            owner: the function or class, for the message.
            parameter: its parameter.
            value: what it is given.

        Raises:
            BadValue: the annotation does not admit it.
        """
        if parameter not in self.types:
            return
        validate = self._adapter(parameter).validate_python
        try:
            validate(value)
        except ValidationError:
            try:
                validate(_without_numpy(value))
            except ValidationError:
                annotation = self.types[parameter]
                raise _refusal(owner, parameter, value, annotation) from None

    @functools.cache  # noqa: B019 - lives as long as the function
    def _adapter(self, parameter: str) -> TypeAdapter[Any]:
        return TypeAdapter(self.types[parameter], config=_STRICT)


def _refusal(
    owner: str, parameter: str, value: Any, annotation: Any
) -> BadValue:
    wanted = f"must be {describe(annotation)}"
    if isinstance(value, int | float) and abs(value) > min(LARGEST):
        wanted += ", and not so large"
    # Such as a path that the system's encoding cannot hold.
    if (
        isinstance(value, str)
        and value != value.encode(errors="ignore").decode()
    ):
        wanted = "is not valid UTF-8"
    return BadValue(
        owner=owner,
        parameter=parameter,
        value=shown(value),
        wanted=f"{wanted}.{advice(value, annotation)}",
    )


def _without_numpy(value: Any) -> Any:
    """Returns a value with Python's whole numbers and truth values in it."""
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, dict):
        pairs = value.items()
        return {_without_numpy(k): _without_numpy(v) for k, v in pairs}
    if isinstance(value, list | tuple):
        return [_without_numpy(part) for part in value]
    return value


def _is_static(part: Any) -> bool:
    """Whether only mypy can check a part of an annotation."""
    return getattr(part, "_is_protocol", False) and not getattr(
        part, "_is_runtime_protocol", False
    )
