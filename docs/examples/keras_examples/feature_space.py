"""Structured data from scratch: strings and numbers, in a `FeatureSpace`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
n = 800
columns = {
    "age": rng.normal(50.0, 12.0, (n, 1)).astype("float32"),
    "pressure": rng.normal(130.0, 20.0, (n, 1)).astype("float32"),
    "vessels": rng.integers(0, 4, (n, 1)),
    "pain": rng.choice(["none", "typical", "other"], (n, 1)),
    "test": rng.choice(["normal", "fixed", "reversible"], (n, 1)),
}
ill = (columns["age"] > 50) & (columns["pain"] != "none")
target = (ill | (columns["vessels"] > 2)).astype("float32")

space = keras.utils.FeatureSpace(
    features={
        "age": keras.utils.FeatureSpace.float_discretized(num_bins=20),
        "pressure": keras.utils.FeatureSpace.float_normalized(),
        "vessels": keras.utils.FeatureSpace.integer_categorical(),
        "pain": keras.utils.FeatureSpace.string_categorical(),
        "test": keras.utils.FeatureSpace.string_categorical(),
    },
    crosses=[
        keras.utils.FeatureSpace.cross(("vessels", "test"), crossing_dim=16)
    ],
    output_mode="concat",
)
data = tf.data.Dataset.from_tensor_slices((columns, target)).batch(32)
space.adapt(data.map(lambda x, _: x))
hidden = layers.Dense(32, activation="relu")(space.get_encoded_features())
output = layers.Dense(1, activation="sigmoid")(hidden)
# From strings to a probability.
model = keras.Model(space.get_inputs(), output)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(data, epochs=4)
print("accuracy", history.history["accuracy"][-1])
