"""`configurable`: gin's, with checks of every argument.

An argument is checked against its annotation where the function or class is
called, be it by gin or by Python. The checks are pydantic's, in its strict
mode: `True` is not a number and 1 is not a truth value, but a whole number
does where any number does. What pydantic makes of the arguments is thrown
away: the function gets the very objects that it was given.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import gin
import numpy as np
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError

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
    # Later: a hint may name what is defined further below.
    checks = Checks(function.__qualname__, lambda: _hints(function))

    @functools.wraps(function)
    def check_and_call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = None
        if given is None:
            own = function.__name__
            called = type(args[0]).__name__ if own == "__init__" else own
            _check_names(name or called, signature, args, kwargs)
            # Python's own message is the clearer one.
            return function(*args, **kwargs)
        for parameter, value in given.items():
            if not checks.admits(parameter, value):
                owner = name or type(args[0]).__name__
                raise refusal(owner, parameter, value, checks.types[parameter])
        return function(*args, **kwargs)

    # Gin looks at the signature, and at what was wrapped.
    check_and_call.__signature__ = signature  # type: ignore[attr-defined]
    del check_and_call.__wrapped__
    setattr(check_and_call, _CHECKS, checks)
    return check_and_call


def _check_names(
    name: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Refuses arguments that a function does not have, and asks for others."""
    known = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for given in kwargs:
        if given not in known:
            names = [one for one in known if one != "self"]
            raise UserError(
                f"{name} has no argument {given!r}. {nearest(given, names)}"
            )
    for number, parameter in enumerate(known.values()):
        by_place = number < len(args) and parameter.kind is not (
            parameter.KEYWORD_ONLY
        )
        if (
            parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
            and not by_place
            and parameter.name not in kwargs
        ):
            raise UserError(f"{name} needs the argument {parameter.name!r}.")


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
    """What the parameters of a function may be given, by its type hints."""

    def __init__(self, name: str, hints: Callable[[], dict[str, Any]]) -> None:
        self._name = name
        self._hints = hints

    @classmethod
    def of(cls, target: Any) -> "Checks | None":
        """Those of a function or class that is `checked`; else `None`."""
        function = target.__init__ if inspect.isclass(target) else target
        return getattr(function, _CHECKS, None)

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The annotations that can be checked, by parameter."""
        try:
            hints = self._hints()
        except NameError as error:
            raise TypeError(
                f"{self._name}: the annotation {error.name} cannot be imported "
                "at run time."
            ) from error
        return {
            name: hint
            for name, hint in hints.items()
            if not any(map(_is_static, parts_of(hint)))
        }

    def admits(self, parameter: str, value: Any) -> bool:
        """Whether a parameter may have a value."""
        if parameter not in self.types:
            return True
        validate = self._adapter(parameter).validate_python
        try:
            validate(value)
        except ValidationError:
            try:
                validate(_without_numpy(value))
            except ValidationError:
                return False
        return True

    @functools.cache  # noqa: B019 - lives as long as the function
    def _adapter(self, parameter: str) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.types[parameter], config=_STRICT)
        except (PydanticUserError, SchemaError) as error:
            raise TypeError(
                f"{self._name}: the annotation of {parameter} is not one that "
                "can be checked."
            ) from error


def refusal(
    owner: str, parameter: str, value: Any, annotation: Any
) -> BadValue:
    """Returns the error for a value that an annotation does not admit."""
    is_huge = isinstance(value, int | float) and abs(value) > min(LARGEST)
    wanted = f"must be {describe(annotation, with_largest=is_huge)}."
    # Such as a path that the system's encoding cannot hold.
    if (
        isinstance(value, str)
        and value != value.encode(errors="ignore").decode()
    ):
        wanted = "is not valid UTF-8."
    return BadValue(
        owner=owner,
        parameter=parameter,
        value=shown(value),
        wanted=f"{wanted}{advice(value, annotation)}",
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
