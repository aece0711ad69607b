"""A small transformer that reads and writes text, character by character."""

import textwrap
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import layers

from trainer import Callback
from trainer.plugin_api import Positive, configurable
from trainer_experiments.models import Width
from trainer_experiments.python_text import VOCABULARY, decode, encode

# The text that GeneratedText continues, by how many characters, and the divisor
# of the logits before one is drawn.
_PROMPT, _CHARACTERS, _TEMPERATURE = "The statement ", 200, 0.7


@keras.saving.register_keras_serializable("trainer_experiments")
class AddPositions(layers.Layer):
    """Adds a trained vector to each position of a sequence."""

    def build(self, shape: Any) -> None:
        """Makes the vectors, for sequences of this length."""
        self.vectors = self.add_weight(
            shape=tuple(shape)[1:], initializer="random_normal"
        )

    def call(self, x: Any) -> Any:
        """Adds to `[batch, length, width]`."""
        return x + self.vectors


@configurable(module="experiments")
def transformer(
    *,
    length: Width = 64,
    width: Width = 96,
    blocks: Positive = 2,
    heads: Positive = 4,
) -> keras.Model:
    """A decoder, as in "Attention Is All You Need" (A. Vaswani et al., 2017).

    Normalized before each sub-layer, and without dropout.

    Args:
        length: characters that it sees.
        width: of each character's vector; a multiple of `heads`.
        blocks: of attention and a network of two layers.
        heads: of attention.

    Returns:
        A model from numbers of characters `[batch, length]` to float32 logits
        of the next ones, `[batch, length, characters]`.
    """
    characters = keras.Input((length,), dtype="int32")
    x = layers.Embedding(len(VOCABULARY), width)(characters)
    x = AddPositions()(x)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.LayerNormalization()(x)
    logits = layers.Dense(len(VOCABULARY), dtype="float32")(x)
    return keras.Model(characters, logits, name="transformer")


@configurable(module="experiments")
class GeneratedText(Callback):
    """Continues a few words, character by character."""

    single = True

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Logs the text once the eval split has been measured."""
        if split != "eval":
            return
        text = self.generate(self.run.model)
        logging.info("Generated: %r", text)
        # Indented, so that TensorBoard's Markdown shows it as it is.
        text = textwrap.indent(text, "    ")
        self.run.log("generated", text, split=split)

    def generate(self, model: keras.Model) -> str:
        """The prompt and its continuation, always the same for equal weights.

        Args:
            model: from numbers of characters to logits, see `transformer`.
        """
        length = model.input_shape[1]
        logits_of = tf.function(model, reduce_retracing=True)
        rng = np.random.default_rng(0)
        numbers = list(encode(_PROMPT))
        for _ in range(_CHARACTERS):
            seen = numbers[-length:]
            # What is to the right of the last character does not count.
            x = np.zeros((1, length), np.int32)
            x[0, : len(seen)] = seen
            logits = logits_of(tf.constant(x))[0, len(seen) - 1].numpy()
            # The largest of these is a draw from the softmax.
            noise = rng.gumbel(size=logits.shape)
            numbers.append(int(np.argmax(logits / _TEMPERATURE + noise)))
        return decode(np.array(numbers))
