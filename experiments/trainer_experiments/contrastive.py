"""SimCLR on small digits: representations without labels."""

from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from trainer import ArrayExamples, Trainer
from trainer.plugin_api import Split, configurable
from trainer_experiments.digits import digits
from trainer_experiments.models import Width

# Of 8x8 pixels in [0, 1]: a standard deviation, and a shift in pixels.
_SEED, _NOISE, _MOVE = 0, 0.1, 1


def nt_xent(views: tf.Tensor, temperature: float) -> tf.Tensor:
    """The normalized, temperature-scaled cross-entropy of pairs of views.

    Each view must find the other view of its example, by similarity, among
    the views of all examples: equation 1 of "A Simple Framework for
    Contrastive Learning of Visual Representations" (T. Chen et al., 2020).

    Args:
        views: float `[batch, 2, width]`, of unit length.
        temperature: divides similarities.

    Returns:
        The mean over all views, a scalar.
    """
    # [2 * batch, width]: all first views, then all second ones.
    both = tf.concat([views[:, 0], views[:, 1]], 0)
    similarity = tf.matmul(both, both, transpose_b=True) / temperature
    size = tf.shape(both)[0]
    # A view is not compared with itself: the lowest number vanishes in softmax.
    itself = tf.eye(size, dtype=tf.bool)
    similarity = tf.where(itself, similarity.dtype.min, similarity)
    # Row i pairs with row i + batch, and the other way round.
    partner = tf.roll(tf.range(size), size // 2, 0)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(partner, similarity)
    )


@configurable(module="experiments")
class SimCLR(Trainer):
    """Draws two views of an example together, and apart from all others.

    Args:
        temperature: see `nt_xent`.
        **kwargs: see `trainer.Trainer`.
    """

    def __init__(
        self,
        *,
        temperature: Annotated[float, Gt(0), Le(1e3)] = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature

    def global_loss(self, y: Any, y_pred: Any) -> tf.Tensor:
        """See `Trainer.global_loss`."""
        views = y_pred["views"] if isinstance(y_pred, dict) else y_pred
        return nt_xent(views, self.temperature)


@configurable(module="experiments")
def encoder(*, units: Width = 128, width: Width = 32) -> keras.Model:
    """A network from two views of a digit to two vectors of unit length.

    A linear probe measures how much of the digits' classes the hidden layer has
    found: it learns from the labels, but passes no gradient on.

    Args:
        units: units of the hidden layer.
        width: length of each vector.

    Returns:
        A model from float `[batch, 2, 8, 8, 1]` to `views`, float32
        `[batch, 2, width]`, and `probe`, float32 logits `[batch, 10]`.
    """
    layers = keras.layers
    # Both views are one example, so that a replica never parts them.
    views = keras.Input((2, 8, 8, 1))
    x = layers.Reshape((2, 64))(views)
    hidden = layers.Dense(units, activation="relu")(x)
    vectors = layers.Dense(width)(hidden)
    # float32 also under mixed precision, for the similarities.
    vectors = layers.UnitNormalization(dtype="float32")(vectors)
    seen = keras.ops.stop_gradient(hidden[:, 0])
    probe = layers.Dense(10, dtype="float32", name="probe")(seen)
    return keras.Model(
        views, {"views": vectors, "probe": probe}, name="encoder"
    )


@configurable(module="experiments")
def two_views(split: Split) -> ArrayExamples:
    """Two views of each of scikit-learn's digits, shifted and with noise.

    Args:
        split: `"train"` or `"eval"`.

    Returns:
        Float32 `[n, 2, 8, 8, 1]`, and labels, int32 `[n]`, for the probe.
    """
    examples = digits(split)
    numbers = tf.range(examples.size, dtype=tf.int64)
    images, labels = (part.numpy() for part in examples.gather(numbers))
    # Views are drawn once, not per epoch, which keeps the example short.
    rng = np.random.default_rng(_SEED)
    views = np.stack([images, images], axis=1)
    for pair in views:
        for i in range(2):
            move = rng.integers(-_MOVE, _MOVE + 1, size=2)
            pair[i] = np.roll(pair[i], move, axis=(0, 1))
    views += _NOISE * rng.normal(size=views.shape)
    return ArrayExamples(
        (views.astype(np.float32), labels), shuffle=split == "train"
    )
