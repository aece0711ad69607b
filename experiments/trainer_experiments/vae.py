"""A variational autoencoder of images."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import Callback, Trainer
from trainer.plugin_api import Text, configurable
from trainer_experiments.models import Width

_SHAPE = (28, 28, 1)
_ROWS = 8


@keras.saving.register_keras_serializable("trainer_experiments")
class StandardNormal(keras.layers.Layer):
    """Normal random numbers, in training and in evaluation.

    A layer, and not a call of `tf.random`: the Trainer makes the random numbers
    of layers a function of the seed, the step and the replica.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, like: Any) -> Any:
        """Numbers of the shape and type of `like`."""
        return keras.random.normal(
            keras.ops.shape(like), dtype=like.dtype, seed=self.seed_generator
        )


@configurable(module="experiments")
class VAE(Trainer):
    """Maximizes the evidence lower bound of each image, in nats.

    "Auto-Encoding Variational Bayes" (D. Kingma and M. Welling, 2013). The
    labels of the images are not used.
    """

    def per_example_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        """See `Trainer.per_example_loss`."""
        pixels = tf.nn.sigmoid_cross_entropy_with_logits(x, y_pred["image"])
        mean, log_variance = tf.split(y_pred["posterior"], 2, axis=-1)
        # To a standard normal distribution.
        divergence = 0.5 * (tf.exp(log_variance) + mean**2 - 1.0 - log_variance)
        # Logged as image_loss and posterior_loss, beside their sum.
        return {
            "image": tf.reduce_sum(pixels, [1, 2, 3]),
            "posterior": tf.reduce_sum(divergence, 1),
        }


@configurable(module="experiments")
def vae(*, units: Width = 256, latent: Width = 16) -> keras.Model:
    """Dense encoder and decoder of 28x28 images.

    Args:
        units: of the hidden layers.
        latent: length of the code.

    Returns:
        A model from float `[batch, 28, 28, 1]` to `image`, logits of that
        shape, and `posterior`, `[batch, 2 * latent]`: the mean of each code,
        and the logarithm of its variance.
    """
    layers = keras.layers
    images = keras.Input(_SHAPE)
    hidden = layers.Flatten()(images)
    for _ in range(2):
        hidden = layers.Dense(units, activation="relu")(hidden)
    posterior = layers.Dense(2 * latent, dtype="float32")(hidden)
    mean, log_variance = keras.ops.split(posterior, 2, axis=-1)
    deviation = keras.ops.exp(0.5 * log_variance)
    code = mean + deviation * StandardNormal()(mean)
    decoder = keras.Sequential(
        [
            keras.Input((latent,)),
            layers.Dense(units, activation="relu"),
            layers.Dense(units, activation="relu"),
            layers.Dense(math.prod(_SHAPE), dtype="float32"),
            layers.Reshape(_SHAPE, dtype="float32"),
        ],
        name="decoder",
    )
    return keras.Model(
        images, {"image": decoder(code), "posterior": posterior}, name="vae"
    )


@configurable(module="experiments")
class GeneratedImages(Callback):
    """Shows images of random codes, the same ones each time.

    Args:
        layer: the name of the layer that makes images of codes.
        logits: whether it gives logits of pixels.
    """

    single = True

    def __init__(self, layer: Text, *, logits: bool = False) -> None:
        super().__init__()
        self._layer = layer
        self._logits = logits

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Logs the images once the eval split has been measured."""
        if split != "eval":
            return
        layer = self.run.model.get_layer(self._layer)
        rng = np.random.default_rng(0)
        size = (_ROWS**2, layer.input_shape[-1])
        images = layer(rng.normal(size=size).astype("float32"))
        grid = as_grid(tf.sigmoid(images) if self._logits else images)
        self.run.log("generated", grid, kind="image", split=split)


def as_grid(images: tf.Tensor) -> tf.Tensor:
    """64 images `[64, height, width, 1]` as one, `[1, ...]`, in 8 rows."""
    height, width = images.shape[1:3]
    grid = tf.reshape(images, [_ROWS, _ROWS, height, width])
    grid = tf.transpose(grid, [0, 2, 1, 3])
    return tf.reshape(grid, [1, _ROWS * height, _ROWS * width, 1])
