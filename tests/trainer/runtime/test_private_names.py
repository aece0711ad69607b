"""Private names of other packages that are not there."""

import keras
import pytest

from trainer import UserError
from trainer.runtime.private_names import require


class Own(keras.Layer):
    """A subclass, which is not where a name would have been."""


@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (keras.Layer, "Layer"),
        (Own(), "Own"),
        (keras.losses, "keras.losses"),
        ("gin.no_module", "gin.no_module"),
    ],
)
def test_what_is_missing_is_named_with_the_versions_that_have_it(owner, place):
    with pytest.raises(UserError) as caught:
        require(owner, "_gone")

    said = str(caught.value)
    assert said.startswith(f"{place}._gone is missing, and trainer needs it")
    for wanted in ("keras<", "gin-config", "tensorflow<"):
        assert wanted in said


def test_what_is_there_is_returned():
    assert require("keras.src.losses.loss", "Loss") is keras.losses.Loss
