"""Metric learning: a siamese network says whether two digits are the same."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype("float32")
rng = np.random.default_rng(0)
# Half of the pairs are of one digit.
left = rng.permutation(np.tile(np.arange(len(labels)), 2))
right = np.array(
    [
        rng.choice(np.flatnonzero((labels == labels[one]) == (i % 2 == 0)))
        for i, one in enumerate(left)
    ]
)
same = (labels[left] == labels[right]).astype("float32")

tower = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(64, activation="relu"),
        layers.Dense(16),
        layers.UnitNormalization(),
    ]
)
inputs = [keras.Input((64,)), keras.Input((64,))]
difference = layers.Subtract()([tower(one) for one in inputs])
distance = ops.sqrt(ops.sum(ops.square(difference), -1, True) + 1e-7)
model = keras.Model(inputs, distance)


def contrastive_loss(y_true, y_pred):
    apart = ops.square(ops.maximum(1.0 - y_pred, 0.0))
    return ops.mean(y_true * ops.square(y_pred) + (1 - y_true) * apart, -1)


def accuracy(y_true, y_pred):
    return ops.mean(ops.cast((y_pred < 0.5) == (y_true > 0.5), "float32"), -1)


model.compile("adam", contrastive_loss, metrics=[accuracy])
history = model.fit(
    [pixels[left], pixels[right]],
    same[:, None],
    batch_size=64,
    epochs=4,
    shuffle=False,
    validation_split=0.2,
)
print("accuracy", history.history["val_accuracy"][-1])
