"""Slurm's short forms: `n[2,10-11]` for nodes and `2(x3),1` for counts."""

import itertools
import re

from trainer.errors import UserError

_COUNT = re.compile(r"(?P<count>\d+)(?:\(x(?P<times>\d+)\))?")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
# A comma that stands outside of brackets.
_OUTER_COMMA = re.compile(r",(?![^\[\]]*\])")
_MOST = 100_000


def expand_nodes(text: str, *, source: str = "node list") -> list[str]:
    """Writes a node list out, in Slurm's order.

    Args:
        text: such as `"n[2,10-11],gpu[01-03]-ib,login"`; several brackets in
            one name count like digits, the last one fastest.
        source: what to call the text in a message.

    Raises:
        UserError: it is empty or not a node list.
    """
    nodes: list[str] = []
    for name in _OUTER_COMMA.split(text.strip()):
        parts = re.split(r"\[([^\[\]]*)\]", name)
        plain, brackets = parts[::2], parts[1::2]
        if not name or any(re.search(r"[\[\]\s]", part) for part in plain):
            raise UserError(
                f"{source}={text!r} is no node list, such as n[1-3,7],m1."
            )
        choices = [_expand_range(b, text, source) for b in brackets]
        for numbers in itertools.product(*choices):
            filled = itertools.zip_longest(plain, numbers, fillvalue="")
            nodes.append("".join(a + b for a, b in filled))
    return nodes


def expand_counts(text: str, *, source: str = "task counts") -> list[int]:
    """Writes out how many tasks each node has.

    Args:
        text: such as `"2(x3),1"`, which is 2, 2, 2, 1.
        source: what to call the text in a message.

    Raises:
        UserError: it is empty or of another form.
    """
    counts: list[int] = []
    for part in text.strip().split(","):
        match = _COUNT.fullmatch(part)
        times = int(match["times"] or 1) if match else 0
        if match is None or not 0 < times <= _MOST or not int(match["count"]):
            raise UserError(
                f"{source}={text!r} does not say how many tasks each node "
                "has, as 2(x3),1 does."
            )
        counts += [int(match["count"])] * times
    return counts


def _expand_range(inside: str, text: str, source: str) -> list[str]:
    """The numbers of one bracket, with their leading zeros."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        first = int(match["first"]) if match else 1
        last = int(match["last"] or first) if match else 0
        if match is None or not 0 <= last - first < _MOST:
            raise UserError(
                f"{source}={text!r}: [{inside}] is no list of numbers, such "
                "as [1-3,7]."
            )
        width = len(match["first"])
        numbers += [str(n).zfill(width) for n in range(first, last + 1)]
    return numbers
