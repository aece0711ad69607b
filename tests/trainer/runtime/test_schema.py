import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.runtime import schema
from trainer.runtime.schema import Misfit

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
CHECKS = {
    "integer": schema.integer(),
    "number": schema.number(),
    "any number": schema.number(finite=False),
    "at least": schema.number(least=0.0),
    "boolean": schema.boolean,
    "text": schema.text,
    "one of": schema.one_of("a", "b"),
    "optional": schema.optional(schema.integer()),
    "list": schema.list_of(schema.number()),
    "mapping": schema.mapping_of(schema.text),
    "record": schema.record({"a": schema.text}, {"b": schema.integer()}),
}
# What fits, and what does not though it is near.
CASES = {
    "integer": ([0, 7], [-1, 1.0, True, 2**60, None, "1"]),
    "number": ([-1, 0.5], [True, math.nan, math.inf, 10**400, "1", None]),
    "any number": ([math.nan, -math.inf, 3], [False, "nan", [], 10**400]),
    "at least": ([0, 1e300], [-1e-9, math.nan, math.inf]),
    "boolean": ([True, False], [0, 1, None, "true"]),
    "text": (["", "x"], [b"x", 1, None, ["x"]]),
    "one of": (["a"], ["c", "", None, 0, ["a"], {}]),
    "optional": ([None, 1], [1.5, "", False]),
    "list": ([[], [1, 2.5]], [[1, "x"], {}, "12", None, [[1]]]),
    "mapping": ([{}, {"a": "b"}], [{"a": 1}, [], "x"]),
    "record": (
        [{"a": ""}, {"a": "", "b": 1, "c": []}],
        [{}, {"b": 1}, {"a": 1}, {"a": "", "b": -1}, [], "a"],
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_what_fits_and_what_does_not(name):
    good, bad = CASES[name]
    for value in good:
        CHECKS[name](value, "it")
    for value in bad:
        with pytest.raises(Misfit, match=r"^it"):
            CHECKS[name](value, "it")


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=50, deadline=None)
@given(value=JSON)
def test_any_json_fits_or_is_a_misfit(name, value):
    said = ""
    try:
        CHECKS[name](json.loads(json.dumps(value)), "it")
    except Misfit as error:
        said = str(error)
    assert len(said) < 300


def test_the_clause_says_where():
    check = schema.record({"a": schema.list_of(schema.integer(1))})
    with pytest.raises(Misfit, match=r"^loop\.a\[1\]: Input should be"):
        check({"a": [1, -1]}, "loop")
    with pytest.raises(Misfit, match=r"^loop\.a: Field required"):
        check({}, "loop")
