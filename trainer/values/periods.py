"""Periods and lengths as users write them: steps, epochs or time."""

import dataclasses
import functools
import re
from typing import Annotated, Any, TypeAlias

from annotated_types import Predicate
from typing_extensions import Doc

from trainer.errors import UserError

_SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
_MOST = 1e15  # Steps or seconds.
# A number, "k" for thousands, and a unit.
_PATTERN = re.compile(
    r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<thousands>k?)\s*"
    r"(?:(?P<steps>|steps?)|(?P<epochs>epochs?)"
    r"|(?P<seconds>s|sec|seconds?)|(?P<minutes>m|min|minutes?)"
    r"|(?P<hours>h|hours?))\s*"
)


@dataclasses.dataclass(frozen=True)
class Period:
    """A number of steps or of seconds; never ends if neither is set.

    Attributes:
        steps: optimizer steps between two events, or `None`.
        seconds: wall time between two events, in seconds, or `None`.
        begin: the step from which steps are counted.
    """

    steps: int | None = None
    seconds: float | None = None
    begin: int = 0

    def next_step(self, step: int) -> int | None:
        """The first step after `step` at which the period ends.

        Args:
            step: the number of steps that are done.

        Returns:
            A step, or `None` for a period in seconds.
        """
        if self.steps is None:
            return None
        done = (step - self.begin) // self.steps
        return self.begin + (done + 1) * self.steps

    def crossed(self, previous: int, step: int) -> bool:
        """Whether a multiple of the period lies in `(previous, step]`."""
        # A host loop may step over a multiple without stopping at it.
        following = self.next_step(previous)
        return following is not None and following <= step


def parse_period(
    value: "int | str | Period",
    *,
    name: str,
    steps_per_epoch: int | None = None,
) -> Period:
    """Reads `100`, `"10k steps"`, `"2 epochs"` or `"30m"`.

    Args:
        value: what the user wrote; a bare number counts steps.
        name: the parameter's name, for the error message.
        steps_per_epoch: how many steps an epoch has, for epochs.

    Returns:
        The period; one that ends up below one step is one step.

    Raises:
        UserError: the text is not a period, is not positive, or needs a
            length that is not known.
    """
    if isinstance(value, Period):
        return value
    match = _PATTERN.fullmatch(str(value).lower())
    if match is None:
        raise UserError(
            f"{name} = {value!r} is not a period. Valid: 100, '10k steps', "
            "'2 epochs', '30s', '30m', '1h'."
        )
    unit = match.lastgroup or ""
    number = float(match["number"]) * (1000 if match["thousands"] else 1)
    if not 0 < number <= _MOST:
        raise UserError(
            f"{name} = {value!r} must be greater than zero, and at most "
            f"{_MOST:g}."
        )
    if unit in _SECONDS:
        return Period(seconds=number * _SECONDS[unit])
    if unit == "epochs":
        if steps_per_epoch is None:
            raise UserError(
                f"{name} = {value!r} cannot be counted: the number of steps "
                "in an epoch is not known. Give the period in steps or seconds."
            )
        number *= steps_per_epoch
    return Period(steps=max(1, round(number)))


def parse_length(
    value: "int | str", *, name: str, steps_per_epoch: int | None = None
) -> int:
    """Reads how long a run is: `1000`, `"10k steps"` or `"3 epochs"`.

    Returns:
        Its number of steps.

    Raises:
        UserError: see `parse_period`; a time is no length.
    """
    period = parse_period(value, name=name, steps_per_epoch=steps_per_epoch)
    if period.steps is None:
        raise UserError(
            f"{name} = {value!r} is a time. Valid: 1000, '10k steps', "
            "'3 epochs'; max_time limits the time."
        )
    return period.steps


def in_epochs(value: "int | str") -> bool:
    """Whether a length or a period is given in epochs."""
    return "epoch" in str(value).lower()


def _is_period(value: Any, *, seconds: bool = False) -> bool:
    try:
        found = parse_period(value, name="", steps_per_epoch=1)
    except UserError:
        return False
    return not seconds or found.seconds is not None


def _is_length(value: Any) -> bool:
    try:
        parse_length(value, name="", steps_per_epoch=1)
    except UserError:
        return False
    # A period of half a step is one step; a length of half a step is none.
    return not isinstance(value, float)


# Annotations of parameters.
Length: TypeAlias = Annotated[
    int | str,
    Predicate(_is_length),
    Doc("a number of steps >= 1, or epochs, such as '3 epochs'"),
]
PeriodLike: TypeAlias = Annotated[
    int | str | Period,
    Predicate(_is_period),
    Doc("a period, such as 100, '2 epochs' or '10m'"),
]
Time: TypeAlias = Annotated[
    str,
    Predicate(functools.partial(_is_period, seconds=True)),
    Doc("a time, such as '30s', '10m' or '1h'"),
]
