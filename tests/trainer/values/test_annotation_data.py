"""Annotations survive JSON; what is not among them is refused."""

import datetime
import json
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Lt, MinLen, Predicate
from typing_extensions import Doc

from trainer.values import annotations
from trainer.values.annotation_data import from_data, to_data

CASES = [
    *(int, None, Any, str | None, list[int] | tuple[float, ...]),
    *(Literal["a", 1, None], bool | Literal["auto"], os.PathLike[str]),
    *(Callable[..., Any], Callable[[int, str], bool], Sequence[str]),
    dict[str, Annotated[float, Ge(0), Lt(2.5)]],
    Annotated[Annotated[str, MinLen(1)] | None, Doc("a name")],
    *(one for one in vars(annotations).values() if hasattr(one, "__args__")),
]


@pytest.mark.parametrize("annotation", CASES, ids=str)
def test_it_comes_back(annotation):
    kept = type(None) if annotation is None else annotation
    assert from_data(json.loads(json.dumps(to_data(kept)))) == kept


@pytest.mark.parametrize(
    "annotation",
    [datetime.date, Annotated[int, Predicate(bool)], set[int], list["int"]],
    ids=str,
)
def test_what_has_no_form(annotation):
    with pytest.raises(ValueError, match="has no form in JSON"):
        to_data(annotation)


@pytest.mark.parametrize("data", ["os.system", ["eval", "1"], ["int"], 3])
def test_only_these_are_read(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_data(data)
