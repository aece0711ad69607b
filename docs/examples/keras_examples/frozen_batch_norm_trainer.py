"""Fine-tuning: the base keeps the statistics of its BatchNormalization."""

import keras
from keras import layers
from sklearn.datasets import load_digits

from trainer import Trainer

keras.utils.set_random_seed(0)
pixels, y = load_digits(return_X_y=True)
x = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
old, new = y < 5, y >= 5


def block(x, filters):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


images = keras.Input((8, 8, 1))
features = layers.GlobalAveragePooling2D()(block(block(images, 16), 32))
base = keras.Model(images, features, name="base")
first = keras.Sequential([base, layers.Dense(5, activation="softmax")])
first.compile("adam", "sparse_categorical_crossentropy")
Trainer(first).fit(x[old], y[old], epochs=3, shuffle=False)

base.trainable = False
inputs = keras.Input((8, 8, 1))
# In inference mode, also once it is trained again.
h = base(inputs, training=False)
outputs = layers.Dense(5, activation="softmax")(h)
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
Trainer(model).fit(x[new], y[new] - 5, epochs=3, shuffle=False)

base.trainable = True
model.compile(
    keras.optimizers.Adam(1e-5),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = Trainer(model).fit(x[new], y[new] - 5, epochs=2, shuffle=False)
print("accuracy", history.history["accuracy"][-1])
