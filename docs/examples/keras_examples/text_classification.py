"""Text classification: from which of two modules does a line of source come?"""

import argparse
import inspect
import tarfile

import keras
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)
lines, labels = [], []
for label, module in enumerate((argparse, tarfile)):
    for line in inspect.getsource(module).splitlines():
        if len(line.split()) > 2:
            lines.append(line)
            labels.append(float(label))

# Which words a line has, in the input pipeline.
vectorize = layers.TextVectorization(
    max_tokens=1000, output_mode="multi_hot", split="whitespace"
)
vectorize.adapt(lines)
examples = tf.data.Dataset.from_tensor_slices((lines, labels))
# In one order in all epochs.
examples = examples.shuffle(10_000, seed=0, reshuffle_each_iteration=False)
examples = examples.map(lambda line, label: (vectorize(line), label))
validation = examples.take(400).batch(32)
train = examples.skip(400).batch(32)

model = keras.Sequential(
    [
        keras.Input((1000,)),
        layers.Dense(16, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(train, epochs=4, validation_data=validation)
print("accuracy", history.history["val_accuracy"][-1])
