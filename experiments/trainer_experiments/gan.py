"""A generative adversarial network: two networks, and an optimizer for each."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import Average, Trainer, WholeSetMetric, average
from trainer.plugin_api import configurable
from trainer_experiments.models import Width
from trainer_experiments.vae import StandardNormal

_PARTS = ("generator", "critic")
_SHAPE = (28, 28, 1)


@configurable(module="experiments")
class GAN(Trainer):
    """Plays generator against critic, with the non-saturating loss.

    "Generative Adversarial Networks" (I. Goodfellow et al., 2014). Both are
    updated at once, from the gradients of the same batch.
    """

    def play(self, real: tf.Tensor) -> tuple[dict[str, Average], tf.Tensor]:
        """The loss of each network, and as many images as there are real."""
        noise, generator, critic = (
            self.model.get_layer(one) for one in ("noise", *_PARTS)
        )
        size = tf.shape(real)[0]
        fake = generator(noise(tf.zeros([size, generator.input_shape[-1]])))
        on_fake, on_real = critic(fake), critic(real)
        count = tf.cast(size, tf.float32)
        fooled = tf.reduce_sum(tf.nn.softplus(-on_fake))
        caught = tf.reduce_sum(
            tf.nn.softplus(on_fake) + tf.nn.softplus(-on_real)
        )
        losses = {
            "generator": average(fooled, count),
            "critic": average(caught, count),
        }
        return losses, fake

    def train_step(self, batch: Any) -> Any:
        """See `Trainer.train_step`."""
        real, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape(persistent=True) as tape:
            losses, _ = self.play(real)
        updates = []
        for name in _PARTS:
            variables = self.model.get_layer(name).trainable_variables
            gradients = self.gradients(tape, losses[name], variables)
            updates.append((name, gradients, variables))
        # All gradients before the first update.
        for name, gradients, variables in updates:
            self.apply_gradients(gradients, variables, optimizer=name)
        return losses

    def eval_step(self, batch: Any) -> Any:
        """See `Trainer.eval_step`."""
        real, _, weight = keras.utils.unpack_x_y_sample_weight(batch)
        losses, fake = self.play(real)
        return {**losses, **self.metric_increments(real, fake, weight)}


@configurable(module="experiments")
def gan(*, filters: Width = 16, latent: Width = 32) -> keras.Model:
    """Convolutional generator and critic of 28x28 images.

    Args:
        filters: of the layers next to the images; the others have twice as
            many.
        latent: how many random numbers an image is made of.

    Returns:
        A model of both. Their names are those of its layers, so that an
        optimizer of the same name keeps state for these weights only.
    """
    layers = keras.layers
    generator = keras.Sequential(
        [
            keras.Input((latent,)),
            layers.Dense(7 * 7 * 2 * filters),
            layers.LeakyReLU(0.2),
            layers.Reshape((7, 7, 2 * filters)),
            layers.Conv2DTranspose(filters, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2DTranspose(1, 4, 2, padding="same"),
            layers.Activation("sigmoid", dtype="float32"),
        ],
        name="generator",
    )
    critic = keras.Sequential(
        [
            keras.Input(_SHAPE),
            layers.Conv2D(filters, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Conv2D(2 * filters, 4, 2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(1, dtype="float32"),
        ],
        name="critic",
    )
    codes = keras.Input((latent,))
    made = generator(StandardNormal(name="noise")(codes))
    return keras.Model(codes, critic(made), name="gan")


@configurable(module="experiments")
def thumbnail_distance() -> WholeSetMetric:
    """The Fréchet distance of images, seen as 7x7 thumbnails."""
    return WholeSetMetric(frechet_distance, name="frechet")


def frechet_distance(real: np.ndarray, made: np.ndarray) -> float:
    """Between normal distributions of the mean and covariance of two sets.

    As the Fréchet inception distance, but of the pixels of thumbnails: it
    needs no network.

    Args:
        real: float `[n, 28, 28, 1]`.
        made: the same.
    """
    small = [
        images.astype("float64").reshape(-1, 7, 4, 7, 4).mean((2, 4))
        for images in (real, made)
    ]
    means = [images.mean(0) for images in small]
    first, second = (
        np.cov(images.reshape(-1, 49).T, bias=True) for images in small
    )
    # Those of a product of covariances are real and not negative.
    values = np.maximum(np.linalg.eigvals(first @ second).real, 0.0)
    spread = np.trace(first + second) - 2.0 * np.sqrt(values).sum()
    return float(np.sum((means[0] - means[1]) ** 2) + spread)
