"""A masked language model: the loss is of the masked positions alone."""

import keras
import numpy as np
from keras import layers, ops

from trainer import Trainer

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
words, length, mask = 30, 16, 31
# Sentences in which each word follows from the last one.
start = rng.integers(1, words, (1024, 1))
text = (start + np.arange(length) * 3) % (words - 1) + 1
is_masked = rng.random(text.shape) < 0.15
masked = np.where(is_masked, mask, text)


class TokenAndPosition(layers.Layer):
    def __init__(self, tokens, length, size, **options):
        super().__init__(**options)
        self.tokens = layers.Embedding(tokens, size)
        self.positions = layers.Embedding(length, size)
        self.length = length

    def call(self, inputs):
        return self.tokens(inputs) + self.positions(ops.arange(self.length))


inputs = keras.Input((length,), dtype="int64")
x = TokenAndPosition(mask + 1, length, 32)(inputs)
for _ in range(2):
    attended = layers.MultiHeadAttention(2, 16)(x, x)
    x = layers.LayerNormalization()(x + attended)
    inner = layers.Dense(64, activation="gelu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(32)(inner))
output = layers.Dense(mask + 1, activation="softmax")(x)
model = keras.Model(inputs, output)
model.compile(
    keras.optimizers.SGD(0.5, momentum=0.9),
    "sparse_categorical_crossentropy",
    weighted_metrics=["accuracy"],
)
trainer = Trainer(model)
history = trainer.fit(
    masked,
    text,
    sample_weight=is_masked.astype("float32"),
    batch_size=64,
    epochs=3,
    shuffle=False,
)
print("accuracy", history.history["accuracy"][-1])
