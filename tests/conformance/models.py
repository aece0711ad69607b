"""Small models and data on which strategies are compared."""

import keras
import numpy as np

FEATURES, HIDDEN = 6, 8
BATCH, MICRO = 16, 2
# The last batch of an epoch holds 2 examples: one a micro-batch, so that
# some replica has fewer than before and another has none.
EXAMPLES = 4 * BATCH + 2
L2 = 0.01
LEARNING_RATE, CLIP_NORM = 0.01, 0.5


def regression_data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = (np.sin(x.sum(1, keepdims=True)) + 0.1 * x[:, :1]).astype("float32")
    weight = rng.uniform(0.2, 2.0, size=EXAMPLES).astype("float32")
    return x, y, weight


def regression_model():
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(
                HIDDEN,
                activation="tanh",
                kernel_regularizer=keras.regularizers.L2(L2),
                name="hidden",
            ),
            keras.layers.BatchNormalization(synchronized=True, name="norm"),
            keras.layers.Dense(1, name="out"),
        ]
    )


def dropout_model():
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )


VOCABULARY, LENGTH = 11, 5


def token_data():
    """Padded sequences of tokens (0 is padding) with a label for each."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, VOCABULARY, size=(EXAMPLES, LENGTH))
    lengths = rng.integers(1, LENGTH + 1, size=EXAMPLES)
    tokens[np.arange(LENGTH)[None, :] >= lengths[:, None]] = 0
    labels = (tokens * 3 + 1) % VOCABULARY
    return tokens.astype("int32"), labels.astype("int32")


def token_model():
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 4, mask_zero=True),
            keras.layers.Dense(VOCABULARY),
        ]
    )


def binary_data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    y = (x[:, 0] + 0.5 * rng.normal(size=EXAMPLES) > 0).astype("float32")
    weight = rng.uniform(0.2, 2.0, size=EXAMPLES).astype("float32")
    return x, y[:, None], weight


def binary_model():
    return keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")]
    )


# The last batch of an epoch holds one example.
VIEWS_BATCH, VIEWS_STEPS, VIEWS_RATE, VIEWS_TEMPERATURE = 7, 4, 0.5, 0.5


def views_data():
    """Two views of each example."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(2 * VIEWS_BATCH + 1, 1, 4))
    return (x + 0.3 * rng.normal(size=(len(x), 2, 4))).astype("float32")


def views_model():
    return keras.Sequential([keras.Input((2, 4)), keras.layers.Dense(3)])
