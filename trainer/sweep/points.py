"""The points of a sweep: what is varied, and how each run is called."""

import dataclasses
import hashlib
import itertools
import re
import tokenize
from collections.abc import Sequence
from typing import Any

from gin import config_parser

from trainer.cli.config.errors import bad_syntax
from trainer.cli.flag_table import FLAGS
from trainer.cli.flags import Binding
from trainer.errors import UserError

# What a name need not be quoted for, in a shell or a pattern.
_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")
# A folder's name has at most 255 bytes.
_MOST_BYTES = 200
_EXAMPLE = "--sweep='Adam.learning_rate=[1e-3, 1e-2]'"


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        name: of its folder, such as `"learning_rate=0.01,batch_size=64"`.
        values: gin text by parameter.
    """

    name: str
    values: dict[str, str]

    @property
    def flags(self) -> list[str]:
        """What sets the values on a command line."""
        return [f"--gin.{name}={value}" for name, value in self.values.items()]

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """What sets the values in this process."""
        return tuple(
            Binding("--sweep", f"{name} = {value}")
            for name, value in self.values.items()
        )


def parse_points(
    sweeps: Sequence[str], bindings: Sequence[Binding] = ()
) -> list[Point]:
    """Returns every combination, the last parameter varying fastest.

    Args:
        sweeps: such as `"Adam.learning_rate=[1e-3, 1e-2]"`.
        bindings: the others of the command line.

    Raises:
        UserError: one is not a list of different values, or something else
            sets its parameter, too.
    """
    axes: dict[str, list[str]] = {}
    for text in sweeps:
        name, axis = _parse(text)
        if any(_are_same(name, other) for other in axes):
            raise UserError(f"--sweep={text}: {name} is varied twice.")
        axes[name] = axis
    _refuse_conflicts(axes, bindings)
    shown = _short(list(axes))
    points: dict[str, Point] = {}
    for chosen in itertools.product(*axes.values()):
        given = dict(zip(axes, chosen, strict=True))
        stem = ",".join(f"{shown[n]}={_readable(v)}" for n, v in given.items())
        stem = name = _cut(stem)
        number = 1
        while name in points:
            number += 1
            name = f"{stem}-{number}"
        points[name] = Point(name, given)
    return list(points.values())


def _parse(text: str) -> tuple[str, list[str]]:
    """Returns a parameter, and the gin text of each of its values."""
    parameter, equals, _ = text.partition("=")
    if not equals or not parameter.strip():
        raise UserError(
            f"--sweep={text}: write a parameter and its values, as in "
            f"{_EXAMPLE}."
        )
    if (flag := FLAGS.get(parameter.strip())) and flag.binds:
        raise UserError(
            f"--sweep={text}: {flag.name} is a flag. Vary the parameter that "
            f"it sets, {flag.binds}."
        )
    try:
        parser = config_parser.ConfigParser(text, _AsText())
        found = next(parser)
        is_binding = isinstance(found, config_parser.BindingStatement)
        if not is_binding or next(parser, None) is not None:
            raise UserError(f"--sweep={text} is not one binding of gin.")
    except (SyntaxError, tokenize.TokenError) as error:
        raise bad_syntax(error, lambda line: f"--sweep={text}") from None
    except (ValueError, RecursionError, StopIteration) as error:
        raise UserError(f"--sweep={text}: {error}.") from None
    if not isinstance(found.value, list) or not found.value:
        raise UserError(
            f"--sweep={text}: the values must be in a list that is not empty, "
            f"as in {_EXAMPLE}."
        )
    values = [repr(value) for value in found.value]
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--sweep={text}: {value} is there twice.")
    name = f"{found.selector}.{found.arg_name}".rstrip(".")
    return f"{found.scope}/{name}" if found.scope else name, values


class _Text(str):
    """Gin text that stays as it is in a list that is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _AsText(config_parser.ParserDelegate):
    """Leaves references as they are written."""

    def configurable_reference(self, name: str, evaluate: bool) -> Any:
        """Called by gin's parser for `@name` and `@name()`."""
        return _Text(f"@{name}{'()' if evaluate else ''}")

    def macro(self, name: str) -> Any:
        """Called by gin's parser for `%name`."""
        return _Text(f"%{name}")


def _refuse_conflicts(
    axes: dict[str, list[str]], bindings: Sequence[Binding]
) -> None:
    """Refuses what would win over a sweep, or lose to it."""
    rates = [name for name in axes if name.endswith(".learning_rate")]
    for binding in bindings:
        given = binding.parameter or binding.text.partition("=")[0]
        for name in axes:
            if _are_same(name, given):
                raise UserError(
                    f"{binding.source} and --sweep both set {name}: give one."
                )
        # This flag replaces the rate of every optimizer.
        if binding.parameter == "Trainer.learning_rate" and rates:
            raise UserError(
                f"{binding.source} replaces {rates[0]}, which --sweep varies: "
                "give one."
            )


def _are_same(one: str, other: str) -> bool:
    """Whether gin may take both names for those of one parameter."""
    (scope, _, short), (other_scope, _, long) = (
        name.rpartition("/")
        for name in sorted((one.strip(), other.strip()), key=len)
    )
    return scope == other_scope and f".{long}".endswith(f".{short}")


def _short(names: list[str]) -> dict[str, str]:
    """Parameters without what they belong to, where that is unambiguous."""
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: short if last.count(short) == 1 else _NOT_IN_NAMES.sub("_", name)
        for name, short in zip(names, last, strict=True)
    }


def _readable(value: str) -> str:
    return _NOT_IN_NAMES.sub("_", value).strip("_") or "_"


def _cut(name: str) -> str:
    encoded = name.encode()
    if len(encoded) <= _MOST_BYTES:
        return name
    start = encoded[: _MOST_BYTES - 9].decode(errors="ignore")
    return f"{start}-{hashlib.sha256(encoded).hexdigest()[:8]}"
