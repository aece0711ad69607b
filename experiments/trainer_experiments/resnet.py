"""ResNet-50 of `keras.applications`, with random weights."""

from typing import Annotated, TypeAlias

import keras
from annotated_types import Ge, Le

from trainer import UserError
from trainer.plugin_api import configurable
from trainer_experiments.models import Width

# Of ImageNet's pixels, red, green and blue, from 0 to 255.
_MEAN = (123.675, 116.28, 103.53)
_VARIANCE = (58.395**2, 57.12**2, 57.375**2)
# The network halves its images five times.
CropSize: TypeAlias = Annotated[int, Ge(32), Le(2**16)]


@configurable(module="experiments")
def resnet50(
    *,
    image_size: Width = 256,
    crop_size: CropSize = 224,
    num_classes: Width = 1000,
) -> keras.Model:
    """ResNet-50 (K. He et al., 2015), of randomly cropped and flipped images.

    Args:
        image_size: height and width of the images.
        crop_size: of what the network sees: a random part in training, which
            is the same of all images of a replica's batch, else the middle.
        num_classes: the number of logits.

    Returns:
        A model from uint8 `[batch, image_size, image_size, 3]` to float32
        logits `[batch, num_classes]`.

    Raises:
        UserError: the crop is larger than the image.
    """
    if crop_size > image_size:
        raise UserError(
            f"resnet50.crop_size = {crop_size} is larger than its image_size "
            f"= {image_size}."
        )
    layers = keras.layers
    # Bytes: a quarter of what floats would take on their way to the device.
    images = keras.Input((image_size, image_size, 3), dtype="uint8")
    x = layers.Rescaling(1.0)(images)
    if crop_size < image_size:
        x = layers.RandomCrop(crop_size, crop_size)(x)
    x = layers.RandomFlip("horizontal")(x)
    x = layers.Normalization(mean=_MEAN, variance=_VARIANCE)(x)
    backbone = keras.applications.ResNet50(
        weights=None,
        include_top=False,
        pooling="avg",
        input_shape=(crop_size, crop_size, 3),
    )
    # Logits stay float32 under mixed precision: the loss needs them.
    logits = layers.Dense(num_classes, dtype="float32")(backbone(x))
    return keras.Model(images, logits, name="resnet50")
