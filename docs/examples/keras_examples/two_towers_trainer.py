"""Two towers: users and films, each with a vocabulary and an embedding."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from trainer import Trainer

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
users = np.array([f"user {i}" for i in range(50)])
films = np.array([f"film {i}" for i in range(40)])
taste, kind = rng.normal(size=(50, 4)), rng.normal(size=(40, 4))
u, f = rng.integers(0, 50, 2000), rng.integers(0, 40, 2000)
liked = ((taste[u] * kind[f]).sum(1) > 0).astype("float32")
seen = {"user": users[u][:, None], "film": films[f][:, None]}
data = tf.data.Dataset.from_tensor_slices((seen, liked[:, None])).batch(100)


def tower(names, size):
    return keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            layers.StringLookup(vocabulary=list(names)),
            layers.Embedding(size + 1, 16),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(8),
        ]
    )


user = keras.Input((1,), dtype="string", name="user")
film = keras.Input((1,), dtype="string", name="film")
score = layers.Dot(1)([tower(users, 50)(user), tower(films, 40)(film)])
output = layers.Activation("sigmoid")(score)
model = keras.Model({"user": user, "film": film}, output)
model.compile(
    keras.optimizers.SGD(0.5, momentum=0.9),
    "binary_crossentropy",
    metrics=["accuracy", "auc"],
)
trainer = Trainer(model)
history = trainer.fit(data.take(18), epochs=4, validation_data=data.skip(18))
print("accuracy", history.history["val_accuracy"][-1])
