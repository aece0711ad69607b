"""Autoencoder: a convolutional network removes noise from digits."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
clean = (load_digits().images / 16).astype("float32")[..., np.newaxis]
noise = np.random.default_rng(0).normal(scale=0.3, size=clean.shape)
noisy = np.clip(clean + noise, 0, 1).astype("float32")

images = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, activation="relu", padding="same")(images)
x = layers.MaxPooling2D(2)(x)
x = layers.Conv2D(16, 3, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, 3, 2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)

autoencoder = keras.Model(images, x)
autoencoder.compile(keras.optimizers.Adam(0.002), "binary_crossentropy")
history = autoencoder.fit(
    noisy[:1500],
    clean[:1500],
    epochs=5,
    batch_size=50,
    shuffle=False,
    validation_data=(noisy[1500:], clean[1500:]),
)
restored = autoencoder.predict(noisy[1500:])
print("error", np.abs(restored - clean[1500:]).mean())
