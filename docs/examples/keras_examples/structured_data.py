"""Structured data: columns of a table, each with its preprocessing layer."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_breast_cancer

keras.utils.set_random_seed(0)
table, target = load_breast_cancer(return_X_y=True, as_frame=True)
table = table.astype("float32")
numbers = ["mean radius", "mean texture", "mean smoothness", "worst area"]
classes = ["mean concavity", "worst symmetry"]

inputs, encoded = {}, []
for column in numbers + classes:
    inputs[column] = keras.Input((1,), name=column.replace(" ", "_"))
    if column in numbers:
        encode = layers.Normalization(axis=None)
    else:
        encode = layers.Discretization(num_bins=6, output_mode="one_hot")
    encode.adapt(table[column].to_numpy())
    encoded.append(encode(inputs[column]))
x = layers.Concatenate()(encoded)
x = layers.Dense(32, activation="relu")(x)
output = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model({one.name: one for one in inputs.values()}, output)


def dataset(part):
    columns = {
        name.replace(" ", "_"): table[[name]].to_numpy()[part]
        for name in inputs
    }
    data = tf.data.Dataset.from_tensor_slices((columns, target[part]))
    # In one order in all epochs.
    data = data.shuffle(600, seed=0, reshuffle_each_iteration=False)
    return data.batch(32)


model.compile("adam", "binary_crossentropy", metrics=["accuracy", "mae"])
history = model.fit(
    dataset(slice(400)),
    epochs=6,
    validation_data=dataset(slice(400, None)),
    class_weight={0: 1.5, 1: 1.0},
)
print("accuracy", history.history["val_accuracy"][-1])
