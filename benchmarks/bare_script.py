"""The script that `benchmarks.startup` compares the first step with.

What a user would write by hand for `experiments/digits.gin`, without files,
flags or callbacks; prints a line after its first step, and ends.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main() -> None:
    """Trains one step."""
    bunch = load_digits()
    images = (bunch.images / 16.0).astype("float32")[..., None]
    labels = bunch.target.astype("int32")
    x, _, y, _ = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    dataset = (
        tf.data.Dataset.from_tensor_slices((x, y))
        .shuffle(len(x))
        .repeat()
        .batch(64)
        .prefetch(tf.data.AUTOTUNE)
    )
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(0.002)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def steps(feed: tf.data.Iterator, count: tf.Tensor) -> tf.Tensor:
        loss = 0.0
        for _ in tf.range(count):
            images, labels = next(feed)
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                loss = loss_of(labels, logits)
            gradients = tape.gradient(loss, [one.value for one in variables])
            optimizer.apply(gradients, variables)
            accuracy.update_state(labels, logits)
        return loss

    loss = float(steps(iter(dataset), tf.constant(1)))
    print(f"step 1  loss {loss:.4f}  accuracy {float(accuracy.result()):.4f}")


if __name__ == "__main__":
    main()
