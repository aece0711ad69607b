"""The models of the example experiments."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import keras
from annotated_types import Ge, Le, Len
from typing_extensions import Doc

from trainer.plugin_api import configurable

Width: TypeAlias = Annotated[int, Ge(1), Le(2**16)]
ImageShape: TypeAlias = Annotated[
    Sequence[Width], Len(3, 3), Doc("height, width and channels")
]


@configurable(module="experiments")
def conv_net(
    *,
    input_shape: ImageShape = (28, 28, 1),
    filters: Width = 32,
    units: Width = 64,
    num_classes: Width = 10,
) -> keras.Model:
    """The convolutional network of TensorFlow's distribution tutorials.

    Args:
        input_shape: height, width and channels of an image.
        filters: filters of the only convolution, which is 3x3.
        units: units of the hidden dense layer.
        num_classes: the number of logits.

    Returns:
        A model from float `[batch, *input_shape]` to float32 logits
        `[batch, num_classes]`.
    """
    return keras.Sequential(
        [
            keras.Input(tuple(input_shape)),
            keras.layers.Conv2D(filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            # Logits stay float32 under mixed precision: the loss needs them.
            keras.layers.Dense(num_classes, dtype="float32"),
        ],
        name="conv_net",
    )
