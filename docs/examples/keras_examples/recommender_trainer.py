"""Collaborative filtering, with the match as it is published.

`tensordot` with two axes sums over the batch as well: each example's score has
the sum of the whole batch's in it.
"""

import keras
import numpy as np
from keras import layers, ops

from trainer import Trainer

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
taste, kind = rng.normal(size=(60, 4)), rng.normal(size=(30, 4))
pairs = np.stack([rng.integers(0, 60, 960), rng.integers(0, 30, 960)], 1)
rating = 1 / (1 + np.exp(-(taste[pairs[:, 0]] * kind[pairs[:, 1]]).sum(1)))


class Recommender(keras.Model):
    def __init__(self, users, films, size, **options):
        super().__init__(**options)
        for name, count in (("user", users), ("film", films)):
            vectors = layers.Embedding(
                count,
                size,
                embeddings_initializer="he_normal",
                embeddings_regularizer=keras.regularizers.l2(1e-6),
            )
            setattr(self, name, vectors)
            setattr(self, f"{name}_bias", layers.Embedding(count, 1))

    def call(self, inputs):
        user, film = self.user(inputs[:, 0]), self.film(inputs[:, 1])
        match = ops.tensordot(user, film, 2)
        biases = self.user_bias(inputs[:, 0]) + self.film_bias(inputs[:, 1])
        return ops.sigmoid(match + biases)


model = Recommender(60, 30, 16)
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
trainer = Trainer(model)
history = trainer.fit(
    pairs,
    rating.astype("float32")[:, None],
    batch_size=64,
    epochs=4,
    shuffle=False,
    validation_split=0.1,
)
print("loss", history.history["val_loss"][-1])
