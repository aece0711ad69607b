"""A layer of random numbers, for models that are generative."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("trainer_experiments")
class StandardNormal(keras.layers.Layer):
    """Normal random numbers, in training and in evaluation.

    A layer, and not a call of `tf.random`: the Trainer makes what layers draw
    a function of the seed, the step and the replica.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, like: Any) -> Any:
        """Numbers of the shape and type of `like`."""
        return keras.random.normal(
            keras.ops.shape(like), dtype=like.dtype, seed=self.seed_generator
        )
