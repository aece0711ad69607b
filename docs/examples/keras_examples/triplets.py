"""A siamese network of triplets: one tower, three inputs, two distances."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype("float32")
rng = np.random.default_rng(0)
anchors = rng.permutation(len(labels))[:1280]
alike = [labels[anchors] == digit for digit in range(10)]
positive, negative = np.empty_like(anchors), np.empty_like(anchors)
for digit, rows in enumerate(alike):
    positive[rows] = rng.choice(np.flatnonzero(labels == digit), rows.sum())
    negative[rows] = rng.choice(np.flatnonzero(labels != digit), rows.sum())

tower = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(64, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dense(16, use_bias=False),
    ]
)


class Distances(layers.Layer):
    def call(self, anchor, positive, negative):
        near = ops.sum(ops.square(anchor - positive), -1, keepdims=True)
        far = ops.sum(ops.square(anchor - negative), -1, keepdims=True)
        return ops.concatenate([near, far], -1)


inputs = [keras.Input((64,), name=n) for n in ("anchor", "like", "unlike")]
output = Distances()(*(tower(one) for one in inputs))
model = keras.Model(inputs, output)


def triplet_loss(_, distances):
    return ops.maximum(distances[:, 0] - distances[:, 1] + 0.5, 0.0)


model.compile(keras.optimizers.Adam(0.001), triplet_loss)
history = model.fit(
    [pixels[anchors], pixels[positive], pixels[negative]],
    np.zeros((len(anchors), 2), "float32"),
    batch_size=64,
    epochs=4,
    shuffle=False,
)
print("loss", history.history["loss"][-1])
