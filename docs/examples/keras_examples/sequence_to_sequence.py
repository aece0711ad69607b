"""Sequence to sequence: dates in words become dates in figures."""

import datetime

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
first = datetime.date(1999, 1, 1)
days = [first + datetime.timedelta(3 * one) for one in range(1500)]
words = [f"{day:%A, %d %B %Y}".ljust(29) for day in days]
# A line begins where the decoder begins.
figures = [f"\n{day:%Y-%m-%d}" for day in days]
characters = sorted(set("".join(words + figures)))


def encode(texts):
    number = {one: i for i, one in enumerate(characters)}
    return np.array([[number[one] for one in text] for text in texts], "int32")


source, target = encode(words), encode(figures)
order = np.random.default_rng(0).permutation(len(days))
source, target = source[order], target[order]

read = keras.Input((29,), dtype="int32")
written = keras.Input((10,), dtype="int32")
source_vectors, target_vectors = (
    ops.one_hot(one, len(characters)) for one in (read, written)
)
_, state = layers.GRU(48, return_state=True)(source_vectors)
decoded = layers.GRU(48, return_sequences=True)(
    target_vectors, initial_state=state
)
next_one = layers.Dense(len(characters), activation="softmax")(decoded)
model = keras.Model([read, written], next_one)

model.compile(
    optimizer="rmsprop",
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    [source, target[:, :-1]],
    target[:, 1:],
    batch_size=50,
    epochs=3,
    shuffle=False,
    validation_split=0.2,
)
print("accuracy", history.history["val_accuracy"][-1])
