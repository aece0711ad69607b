"""A backbone of KerasHub, with random weights."""

import keras

from trainer import UserError
from trainer.plugin_api import Positive, configurable
from trainer_experiments.models import ImageShape, Width


@configurable(module="experiments")
def vision_transformer(
    *,
    image_shape: ImageShape = (28, 28, 1),
    patch_size: Positive = 7,
    blocks: Positive = 3,
    heads: Positive = 4,
    width: Width = 64,
    num_classes: Width = 10,
) -> keras.Model:
    """KerasHub's `ViTBackbone`, and a layer that classifies.

    "An Image is Worth 16x16 Words" (A. Dosovitskiy et al., 2020).

    Args:
        image_shape: height, width and channels.
        patch_size: height and width of the squares that are its words.
        blocks: of attention and a network of two layers.
        heads: of attention.
        width: of each patch's vector.
        num_classes: the number of logits.

    Returns:
        A model from float `[batch, *image_shape]` to float32 logits
        `[batch, num_classes]`.

    Raises:
        UserError: KerasHub is not installed.
    """
    # Imported here: KerasHub is an optional dependency.
    try:
        import keras_hub
    except ImportError as error:
        raise UserError(
            f"vision_transformer needs KerasHub, which cannot be imported "
            f"({error}): pip install 'keras-trainer-plugins[hub]'"
        ) from None
    backbone = keras_hub.models.ViTBackbone(
        image_shape=tuple(image_shape),
        patch_size=patch_size,
        num_layers=blocks,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=2 * width,
    )
    images = keras.Input(tuple(image_shape))
    # The first vector is that of the class token.
    logits = keras.layers.Dense(num_classes, dtype="float32")(
        backbone(images)[:, 0]
    )
    return keras.Model(images, logits, name="vision_transformer")
