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
        ("keras.src.no_module", "keras.src.no_module"),
    ],
)
def test_what_is_missing_is_named_with_the_versions_that_have_it(owner, place):
    with pytest.raises(UserError) as caught:
        require(owner, "_gone")

    assert str(caught.value) == (
        f"{place}._gone is missing from keras {keras.__version__}, and trainer "
        "needs it: install keras >=3.12,<3.16."
    )


@pytest.mark.parametrize(
    ("owner", "wanted"),
    [
        ("gin.no_module", "install gin >=0.5.0"),
        ("tensorflow.no_module", "install tensorflow >=2.20,<2.22"),
    ],
)
def test_other_packages_are_named_with_their_versions(owner, wanted):
    with pytest.raises(UserError, match=wanted):
        require(owner, "_gone")


def test_what_is_there_is_returned():
    assert require("keras.src.losses.loss", "Loss") is keras.losses.Loss
