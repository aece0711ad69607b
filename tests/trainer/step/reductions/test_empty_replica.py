"""A replica without an example: every kind of layer equals Keras' `fit`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import ArrayExamples, Trainer

# Two full batches and one of a single example.
SIZE, BATCH, EPOCHS, RATE = 9, 4, 2, 0.01
RNG = np.random.default_rng(4)
Y = RNG.normal(size=(SIZE, 1)).astype("float32")


def numbers(*shape):
    return RNG.normal(size=(SIZE, *shape)).astype("float32")


IMAGES, LABELS = numbers(8, 8, 3), RNG.integers(0, 3, (SIZE, 8, 8))
VOLUMES, SERIES = numbers(4, 4, 4, 2), numbers(6, 4)
FILMS = numbers(3, 4, 4, 2)
TOKENS = RNG.integers(1, 7, (SIZE, 5)).astype("int32")
TOKENS[np.arange(5) >= RNG.integers(1, 6, SIZE)[:, None]] = 0


def branches(x, *made, head=layers.Flatten):
    """A model of layers side by side, each with an output of its own."""
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    found = []
    for one in made:
        y = inputs
        for layer in one if isinstance(one, tuple) else (one,):
            y = layer(y)
        found.append(layers.Dense(1)(head()(y)))
    return keras.Model(inputs, layers.Average()(found))


def of_space(dimensions, x):
    def named(name):
        return getattr(layers, f"{name}{dimensions}D")

    conv = functools.partial(named("Conv"), 2, 2)
    made = [
        conv(),
        conv(padding="same", dilation_rate=2, activation="relu"),
        conv(strides=2),
        named("Conv")(2, 2, groups=2) if x.shape[-1] % 2 == 0 else conv(),
        named("MaxPooling")(2),
        named("AveragePooling")(2),
        named("UpSampling")(),
        named("ZeroPadding")(),
        named("Cropping")(1),
        named("Conv")(2, 1, kernel_regularizer="l2", activity_regularizer="l2"),
        (conv(), layers.GroupNormalization(2)),
        (conv(), layers.BatchNormalization()),
        (conv(), layers.LayerNormalization(), layers.PReLU()),
        (conv(), named("GlobalMaxPooling")(keepdims=True)),
        (conv(), named("GlobalAveragePooling")(keepdims=True)),
        layers.SpectralNormalization(conv()),
        getattr(layers, f"Conv{dimensions}DTranspose")(2, 2, strides=2),
    ]
    if dimensions < 3:
        made += [named("SeparableConv")(2, 2), named("DepthwiseConv")(2)]
    return branches(x, *made)


def recurrent():
    return branches(
        SERIES,
        layers.LSTM(2),
        layers.GRU(2, return_sequences=True),
        layers.SimpleRNN(2),
        layers.RNN([layers.LSTMCell(2), layers.SimpleRNNCell(2)]),
        layers.Bidirectional(layers.LSTM(2)),
        layers.TimeDistributed(layers.Dense(2)),
        (layers.Masking(), layers.GRU(2)),
        layers.EinsumDense("abc,cd->abd", (6, 2)),
        layers.Permute((2, 1)),
    )


def films():
    return branches(
        FILMS,
        layers.ConvLSTM2D(2, 2),
        layers.TimeDistributed(layers.Conv2D(2, 2)),
        layers.Conv3D(2, 2),
    )


def attention():
    inputs = keras.Input((6, 4))
    x = layers.LayerNormalization()(inputs)
    found = [
        layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True),
        layers.GroupQueryAttention(2, 2, 1)(x, x),
        layers.Attention(use_scale=True)([x, x]),
        layers.AdditiveAttention()([x, x]),
        layers.UnitNormalization()(x),
        layers.RMSNormalization()(x),
        layers.Softmax()(x),
    ]
    flat = [layers.Flatten()(one) for one in found]
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(flat)))


def tokens():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
    found = [
        layers.LSTM(2)(x),
        layers.LSTM(2)(layers.BatchNormalization()(x)),
        layers.Bidirectional(layers.GRU(2))(x),
        layers.GlobalAveragePooling1D()(x),
        layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 2)(x, x)),
        layers.Flatten()(layers.CategoryEncoding(7, "count")(inputs)),
    ]
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(found)))


def unet():
    """That of keras.io's "Image segmentation", with two levels."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    before = x
    for _ in range(2):
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(8, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    residual = layers.Conv2D(8, 1, strides=2, padding="same")(before)
    before = x = layers.add([x, residual])
    for filters in (8, 4):
        for _ in range(2):
            x = layers.Activation("relu")(x)
            x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
            x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.UpSampling2D(2)(before)
        residual = layers.Conv2D(filters, 1, padding="same")(residual)
        before = x = layers.add([x, residual])
    outputs = layers.Conv2D(3, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


MODELS = {
    "one": (functools.partial(of_space, 1, SERIES), (SERIES, Y), "mse"),
    "two": (functools.partial(of_space, 2, IMAGES), (IMAGES, Y), "mse"),
    "three": (functools.partial(of_space, 3, VOLUMES), (VOLUMES, Y), "mse"),
    "recurrent": (recurrent, (SERIES, Y), "mse"),
    "films": (films, (FILMS, Y), "mse"),
    "attention": (attention, (SERIES, Y), "mse"),
    "tokens": (tokens, (TOKENS, Y), "mse"),
    "unet": (unet, (IMAGES, LABELS), "sparse_categorical_crossentropy"),
}


def made(name):
    keras.utils.set_random_seed(5)
    return MODELS[name][0]()


def numbered(weights):
    return {f"weight{i}": np.array(one) for i, one in enumerate(weights)}


def trained(name, strategy, **options):
    _, arrays, loss = MODELS[name]
    trainer = Trainer(
        model=functools.partial(made, name),
        optimizer=lambda: keras.optimizers.SGD(RATE),
        loss=loss,
        metrics=["mae" if loss == "mse" else "accuracy"],
        data=lambda split: ArrayExamples(arrays, shuffle=False),
        batch_size=BATCH,
        strategy=strategy,
        **options,
    )
    steps = EPOCHS * -(-SIZE // BATCH)
    logs = trainer.train(steps, log_every=steps // EPOCHS)
    found = numbered(trainer.model.get_weights())
    evaluated = trainer.evaluate(verbose=0)
    return found | logs | {f"val_{k}": v for k, v in evaluated.items()}


def _case(name, **options):
    def case(strategy):
        return trained(name, strategy, **options)

    case.__name__ = "_".join([name, *options])
    return case


def normed():
    """A micro-batch of its own for each half; of one example, one is empty."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(2, 3),
            layers.BatchNormalization(momentum=0.5),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def micro_normed(strategy):
    return trained("normed", strategy, accumulation_steps=2)


MODELS["normed"] = normed, (IMAGES, Y), "mse"
MIRRORED = ("mirrored_2", "mirrored_3")
ALL = (*MIRRORED, "central_storage_2")
CASES = {
    # TensorFlow compiles convolutions of groups, and cannot where variables
    # are on another device.
    _case("one"): MIRRORED,
    _case("two"): ALL,
    _case("three"): MIRRORED,
    _case("recurrent"): ALL,
    _case("films"): ALL,
    _case("attention"): ALL,
    _case("tokens"): ALL,
    _case("unet"): ALL,
    _case("films", accumulation_steps=2): ("default", "mirrored_2"),
    _case("attention", accumulation_steps=2): ("default", "central_storage_2"),
    _case("films", jit_compile=True): ("mirrored_3",),
    micro_normed: ("default",),
}
ORDINARY = (
    ("two", "mirrored_2"),
    ("attention", "central_storage_2"),
    ("films_accumulation_steps", "default"),
    ("micro_normed", "default"),
)
LONG = [
    (case.__name__, strategy)
    for case, strategies in CASES.items()
    for strategy in strategies
    if (case.__name__, strategy) not in ORDINARY
]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("empty")
    module = "tests.trainer.step.reductions.test_empty_replica"
    return run_cases(module, request, directory, root, LONG)


@functools.cache
def fitted(name):
    _, (x, y), loss = MODELS[name]
    model = made(name)
    metric = "mae" if loss == "mse" else "accuracy"
    model.compile(keras.optimizers.SGD(RATE), loss, metrics=[metric])
    options = {"batch_size": BATCH, "verbose": 0}
    history = model.fit(x, y, epochs=EPOCHS, shuffle=False, **options).history
    found = {key: values[-1] for key, values in history.items()}
    evaluated = model.evaluate(x, y, return_dict=True, **options)
    found |= {f"val_{key}": value for key, value in evaluated.items()}
    return numbered(model.get_weights()) | found


def by_micro_batches():
    """The same as a loop over those that have examples."""
    model, optimizer = made("normed"), keras.optimizers.SGD(RATE)
    starts = [*range(0, SIZE, BATCH)] * EPOCHS
    for start in starts:
        rows = np.arange(start, min(start + BATCH, SIZE))
        total = [0.0] * len(model.trainable_variables)
        for part in np.array_split(rows, 2):
            if len(part):
                with tf.GradientTape() as tape:
                    error = model(IMAGES[part], training=True) - Y[part]
                    loss = tf.reduce_sum(error**2) / len(rows)
                found = tape.gradient(loss, model.trainable_variables)
                total = [a + b for a, b in zip(total, found, strict=True)]
        optimizer.apply(total, model.trainable_variables)
    return numbered(model.get_weights())


@pytest.mark.parametrize(("case", "strategy"), pairs(CASES, LONG))
def test_equals_fit(results, case, strategy):
    if case == "micro_normed":
        expected = by_micro_batches()
    else:
        expected = fitted(case.partition("_")[0])
    assert_close(found_in(results, case, strategy), expected)
