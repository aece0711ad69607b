"""Transfer learning: the base learns five digits, a new head the other five."""

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
pixels, y = load_digits(return_X_y=True)
x = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
old, new = y < 5, y >= 5

base = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu"),
        layers.Conv2D(16, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
first = keras.Sequential([base, layers.Dense(5, activation="softmax")])
model = keras.Sequential([base, layers.Dense(5, activation="softmax")])
first.compile("adam", "sparse_categorical_crossentropy")
first.fit(x[old], y[old], epochs=5, shuffle=False)

# The head alone, and then all of it with a low learning rate.
base.trainable = False
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x[new], y[new] - 5, epochs=5, shuffle=False)

base.trainable = True
model.compile(
    keras.optimizers.Adam(1e-4),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(x[new], y[new] - 5, epochs=2, shuffle=False)
print("accuracy", history.history["accuracy"][-1])
