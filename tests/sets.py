"""Which cases are in the ordinary set, and which only in the long one."""

import pytest


def long(*values):
    """A case of the long set."""
    return pytest.param(*values, marks=pytest.mark.long)


def ordinary(cases, chosen):
    """All cases; those that are not chosen belong to the long set."""
    cases, chosen = list(cases), list(chosen)
    assert all(one in cases for one in chosen)
    return [
        one
        if one in chosen
        else long(*(one if isinstance(one, tuple) else (one,)))
        for one in cases
    ]


def one_in(number, cases):
    """All cases, of which every `number`-th one is in the ordinary set.

    For cases of one kind, where any one of them would find what is broken.
    """
    cases = list(cases)
    return ordinary(cases, cases[::number])


def is_long(request):
    """Whether a test of the long set is about to run from this file."""
    return any(
        item.path == request.path and item.get_closest_marker("long")
        for item in request.session.items
    )
