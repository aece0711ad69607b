"""Expands Slurm's node lists, `n[2,10-11]`, and task counts, `2(x3),1`."""

import itertools
import re

from trainer.errors import UserError

_COUNT = re.compile(r"(?P<count>\d+)(?:\(x(?P<times>\d+)\))?")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
# A comma outside of brackets.
_OUTER_COMMA = re.compile(r",(?![^\[\]]*\])")
# A mistyped range, such as [1-999999999], must not use up the memory.
_MOST = 100_000


def expand_nodes(text: str, *, source: str = "node list") -> list[str]:
    """Expands a node list, in Slurm's order.

    Args:
        text: such as `"n[2,10-11],gpu[01-03]-ib,login"`; of several
            brackets in one name, the last one varies fastest.
        source: the name of the text in messages.

    Raises:
        UserError: it is empty or not a node list.
    """
    nodes: list[str] = []
    for name in _OUTER_COMMA.split(text.strip()):
        # The text outside and inside of brackets, in turn.
        parts = re.split(r"\[([^\[\]]*)\]", name)
        plain, brackets = parts[::2], parts[1::2]
        if not name or any(re.search(r"[\[\]\s]", part) for part in plain):
            raise UserError(
                f"{source}={text!r} is not a node list, such as n[1-3,7],m1."
            )
        choices = [_expand_range(b, text, source) for b in brackets]
        for numbers in itertools.product(*choices):
            # There is one more plain part than there are brackets.
            filled = itertools.zip_longest(plain, numbers, fillvalue="")
            nodes.append("".join(a + b for a, b in filled))
    return nodes


def expand_counts(text: str, *, source: str = "task counts") -> list[int]:
    """Expands the number of tasks on each node.

    Args:
        text: such as `"2(x3),1"`, which is 2, 2, 2, 1.
        source: the name of the text in messages.

    Raises:
        UserError: it is empty or has another form.
    """
    counts: list[int] = []
    for part in text.strip().split(","):
        match = _COUNT.fullmatch(part)
        times = int(match["times"] or 1) if match else 0
        if match is None or not 0 < times <= _MOST or not int(match["count"]):
            raise UserError(
                f"{source}={text!r} is not a list of task counts, such as "
                "2(x3),1."
            )
        counts += [int(match["count"])] * times
    return counts


def _expand_range(inside: str, text: str, source: str) -> list[str]:
    """Returns the numbers of one bracket, with leading zeros."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        first = int(match["first"]) if match else 1
        last = int(match["last"] or first) if match else 0
        if match is None or not 0 <= last - first < _MOST:
            raise UserError(
                f"{source}={text!r}: [{inside}] is not a list of numbers, such "
                "as [1-3,7]."
            )
        # Slurm writes leading zeros: n[08-10] is n08, n09, n10.
        width = len(match["first"])
        numbers += [str(n).zfill(width) for n in range(first, last + 1)]
    return numbers
