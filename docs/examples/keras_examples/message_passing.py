"""Message passing: the graphs of a batch are merged into one.

Atoms and bonds of a batch's molecules are one table each, with more rows than
the batch has molecules.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
sizes = np.concatenate(
    [rng.permutation(np.arange(32) % 6 + 3) for _ in range(10)]
)


def batches():
    for begin in range(0, len(sizes), 32):
        some = sizes[begin : begin + 32]
        atoms = rng.normal(size=(some.sum(), 6)).astype("float32")
        molecule = np.repeat(np.arange(len(some)), some)
        # Each atom is bound to the next one of all.
        pairs = np.stack([np.arange(len(atoms) - 1), np.arange(1, len(atoms))])
        means = [atoms[molecule == i, 0].mean() for i in range(len(some))]
        target = (np.array(means) > 0).astype("float32")
        yield (atoms, pairs.T, molecule), target[:, None]


data = list(batches())
dataset = tf.data.Dataset.from_generator(
    lambda: iter(data),
    output_signature=(
        (
            tf.TensorSpec((None, 6), "float32"),
            tf.TensorSpec((None, 2), "int64"),
            tf.TensorSpec((None,), "int64"),
        ),
        tf.TensorSpec((None, 1), "float32"),
    ),
).apply(tf.data.experimental.assert_cardinality(len(data)))


class Messages(keras.Model):
    def __init__(self, size, **options):
        super().__init__(**options)
        self.first = layers.Dense(size, activation="relu")
        self.message = layers.Dense(size, activation="relu")
        self.readout = layers.Dense(1, activation="sigmoid")

    def call(self, inputs):
        atoms, pairs, molecule = inputs
        h = self.first(atoms)
        for _ in range(2):
            sent = self.message(ops.take(h, pairs[:, 1], 0))
            h = h + ops.segment_sum(sent, pairs[:, 0], ops.shape(h)[0])
        return self.readout(ops.segment_sum(h, molecule, ops.max(molecule) + 1))


model = Messages(16)
model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy")
history = model.fit(dataset, epochs=3)
print("loss", history.history["loss"][-1])
