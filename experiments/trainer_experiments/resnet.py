"""ResNet-50 of `keras.applications`, with random weights: large and small."""

from typing import Annotated, Any, TypeAlias

import keras
from annotated_types import Ge, Gt, Le, Lt
from keras import ops

from trainer import UserError
from trainer.plugin_api import configurable
from trainer_experiments.models import Width

# Of ImageNet's pixels, red, green and blue, from 0 to 255.
_MEAN = (123.675, 116.28, 103.53)
_VARIANCE = (58.395**2, 57.12**2, 57.375**2)
# The network halves its images five times.
CropSize: TypeAlias = Annotated[int, Ge(32), Le(2**16)]
Momentum: TypeAlias = Annotated[float, Gt(0), Lt(1)]


@keras.saving.register_keras_serializable("trainer_experiments")
class RandomView(keras.layers.Layer):
    """A random square of each image in training, half of them mirrored.

    Otherwise it is the middle. Parts are selected by matrix products, which a
    TPU computes faster than it gathers. Bytes are exact in bfloat16.

    Args:
        size: height and width of the square.
        **kwargs: see `keras.layers.Layer`.
    """

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, images: Any, training: bool = False) -> Any:
        """Cuts `[batch, height, width, channels]` to `size`."""
        size, (height, width) = self.size, images.shape[1:3]
        images = ops.cast(images, self.compute_dtype)
        if not training:
            top, left = (height - size) // 2, (width - size) // 2
            return images[:, top : top + size, left : left + size]
        inside = ops.arange(size)
        mirrored = ops.where(self._draw(images, 2), size - 1 - inside, inside)
        rows = self._draw(images, height - size + 1) + inside
        columns = self._draw(images, width - size + 1) + mirrored
        rows = ops.one_hot(rows, height, dtype=self.compute_dtype)
        columns = ops.one_hot(columns, width, dtype=self.compute_dtype)
        images = ops.einsum("bih,bhwc->biwc", rows, images)
        return ops.einsum("bjw,biwc->bijc", columns, images)

    def compute_output_shape(self, shape: Any) -> Any:
        """See `keras.layers.Layer`."""
        return (shape[0], self.size, self.size, shape[3])

    def get_config(self) -> dict[str, Any]:
        """See `keras.layers.Layer`."""
        return super().get_config() | {"size": self.size}

    def _draw(self, images: Any, stop: int) -> Any:
        """Random integers from 0, one for each image, int32 `[batch, 1]`."""
        shape = (ops.shape(images)[0], 1)
        return keras.random.randint(shape, 0, stop, seed=self.seed_generator)


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
        crop_size: of the part that the network sees.
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
    x = RandomView(crop_size)(images)
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


@configurable(module="experiments")
def resnet50_of_digits(*, bn_momentum: Momentum = 0.9) -> keras.Model:
    """ResNet-50 of MNIST's digits, in the smallest images that it takes.

    Args:
        bn_momentum: of the running statistics of BatchNormalization; Keras'
            0.99 takes more steps than a small data set allows.

    Returns:
        A model from float `[batch, 28, 28, 1]` in [0, 1] to float32 logits
        `[batch, 10]`.
    """
    layers = keras.layers
    images = keras.Input((28, 28, 1))
    x = layers.ZeroPadding2D(2)(images)
    x = layers.Concatenate()([x, x, x])
    backbone = keras.applications.ResNet50(
        weights=None, include_top=False, pooling="avg", input_shape=(32, 32, 3)
    )
    for layer in backbone.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = bn_momentum
    logits = layers.Dense(10, dtype="float32")(backbone(x))
    return keras.Model(images, logits, name="resnet50_of_digits")
