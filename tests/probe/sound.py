"""Models that keep the promise: nothing of them depends on the cut."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.probe.models import (
    CLASSES,
    IMAGES,
    TIMES,
    TOKENS,
    WEIGHTS,
    X,
    Y,
    case,
    dense,
    own,
)
from trainer import Trainer, average

SPARSE = keras.losses.SparseCategoricalCrossentropy


def _alone(function, **options):
    return case(dense(8), own(lambda s, x, t: function(x)), dense(1), **options)


def _state(value, aggregation=None, dtype="float32"):
    def build(layer, _):
        options = {} if aggregation is None else {"aggregation": aggregation}
        layer.kept = layer.add_weight(
            shape=(6,),
            initializer="ones",
            trainable=False,
            dtype=dtype,
            **options,
        )

    def call(layer, x, training):
        if training:
            layer.kept.assign(ops.cast(value(layer.kept, x), dtype))
        return x

    return case(own(call, build), dense(1))


def _added(function, **options):
    def call(layer, x, training):
        layer.add_loss(function(x))
        return x

    return case(dense(4), own(call), dense(1), **options)


def _images(*made, **options):
    flat = lambda: layers.GlobalAveragePooling2D()  # noqa: E731
    return case(*made, flat, dense(1), data=(IMAGES, Y), **options)


def _augmented(make):
    return _images(make, lambda: layers.Conv2D(4, 3))


def _times(*made, **options):
    return case(*made, dense(1), data=(TIMES, Y), **options)


def _gated():
    inputs = keras.Input((6,))
    gate = layers.Dense(8, "sigmoid")(inputs)
    value = layers.Dense(8)(inputs)
    return keras.Model(
        inputs, layers.Dense(1)(layers.Multiply()([gate, value]))
    )


def _two_outputs():
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "relu")(inputs)
    return keras.Model(
        inputs,
        {
            "a": layers.Dense(1, name="a")(hidden),
            "b": layers.Dense(1, name="b")(hidden),
        },
    )


def _shared():
    inputs = keras.Input((6,))
    layer = layers.Dense(6, "tanh")
    return keras.Model(inputs, layers.Dense(1)(layer(layer(inputs))))


def _encoder():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(11, 8)(inputs)
    x = x + layers.MultiHeadAttention(2, 4, dropout=0.2)(x, x)
    x = layers.LayerNormalization()(x)
    x = x + layers.Dense(8)(layers.Dense(16, "gelu")(x))
    return keras.Model(
        inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x))
    )


def _residual():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(2):
        y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
        x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1)(x))


class Sampled(keras.Model):
    def __init__(self):
        super().__init__()
        self.mean, self.out = layers.Dense(3), layers.Dense(1)

    def call(self, x):
        mean = self.mean(x)
        return self.out(mean + keras.random.normal(ops.shape(mean)))


class _Noise(Trainer):
    def per_example_loss(self, x, y, y_pred):
        noise = keras.random.uniform(ops.shape(y))
        return ops.mean(ops.square(y - y_pred + 0.1 * noise), -1)


class _OwnStep(Trainer):
    """Its model gets half of each row, as a GAN's gets none of it."""

    def loss_of(self, batch, training):
        x, y = batch
        error = ops.square(y - self.model(x[:, ::2], training=training))
        count = ops.cast(ops.shape(x)[0], "float32")
        return average(ops.sum(error), count)

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = self.loss_of(batch, training=True)
        variables = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, loss, variables), variables)
        return {"loss": loss}

    def eval_step(self, batch):
        return {"loss": self.loss_of(batch, training=False)}


class _Global(Trainer):
    def global_loss(self, y, y_pred):
        return ops.mean(ops.square(y_pred - ops.mean(y_pred)))


class _Gathered(Trainer):
    def forward(self, x, *, training):
        y = self.model(x, training=training)
        return y - tf.reduce_mean(self.all_gather(y).values, axis=0)


class _Gather(Trainer):
    """Evaluates eagerly and by replica: with all examples in both."""

    def per_example_loss(self, x, y, y_pred):
        whole = self.all_gather(y_pred).values
        return ops.mean(ops.square(y - y_pred + ops.mean(whole)), -1)


LAYERS = {
    "perceptron": case(dense(8, "relu"), dense(1)),
    "dropout": case(dense(8), lambda: layers.Dropout(0.5), dense(1)),
    "spatial dropout": _times(
        lambda: layers.Conv1D(4, 2),
        lambda: layers.SpatialDropout1D(0.5),
        lambda: layers.Flatten(),
    ),
    "gaussian noise": case(
        lambda: layers.GaussianNoise(0.3), dense(8), dense(1)
    ),
    "gaussian dropout": case(
        lambda: layers.GaussianDropout(0.3), dense(8), dense(1)
    ),
    "alpha dropout": case(
        dense(8, "selu"), lambda: layers.AlphaDropout(0.2), dense(1)
    ),
    "batch normalization": case(
        dense(8), lambda: layers.BatchNormalization(), dense(1)
    ),
    "twice normalized": case(
        lambda: layers.BatchNormalization(),
        dense(8, "relu"),
        lambda: layers.BatchNormalization(),
        dense(1),
    ),
    "layer normalization": case(
        dense(8), lambda: layers.LayerNormalization(), dense(1)
    ),
    "group normalization": _images(
        lambda: layers.Conv2D(4, 3), lambda: layers.GroupNormalization(2)
    ),
    "unit normalization": case(
        dense(8), lambda: layers.UnitNormalization(), dense(1)
    ),
    "spectral normalization": case(
        lambda: layers.SpectralNormalization(layers.Dense(8)), dense(1)
    ),
    "convolutions": _images(
        lambda: layers.Conv2D(4, 3, activation="relu"),
        lambda: layers.MaxPooling2D(),
        lambda: layers.SeparableConv2D(6, 2),
    ),
    "residual": case(model=_residual, data=(IMAGES, Y)),
    "depthwise": _images(lambda: layers.DepthwiseConv2D(3)),
    "transposed": _images(lambda: layers.Conv2DTranspose(4, 3)),
    "lstm": _times(lambda: layers.LSTM(4, dropout=0.2)),
    "gru": _times(
        lambda: layers.GRU(4, return_sequences=True), lambda: layers.GRU(3)
    ),
    "bidirectional": _times(lambda: layers.Bidirectional(layers.LSTM(3))),
    "time distributed": _times(
        lambda: layers.TimeDistributed(layers.Dense(4)),
        lambda: layers.Flatten(),
    ),
    "masking": _times(lambda: layers.Masking(), lambda: layers.GRU(4)),
    "embedding": case(
        lambda: layers.Embedding(11, 4, mask_zero=True),
        lambda: layers.LSTM(4),
        dense(1),
        data=(TOKENS, Y),
    ),
    "encoder": case(model=_encoder, data=(TOKENS, Y)),
    "gated": case(model=_gated),
    "shared": case(model=_shared),
    "sampled": case(model=Sampled),
    "random flip": _augmented(lambda: layers.RandomFlip()),
    "random rotation": _augmented(lambda: layers.RandomRotation(0.2)),
    "random translation": _augmented(
        lambda: layers.RandomTranslation(0.2, 0.2)
    ),
    "random zoom": _augmented(lambda: layers.RandomZoom(0.2)),
    "random contrast": _augmented(lambda: layers.RandomContrast(0.3)),
    "random brightness": _augmented(
        lambda: layers.RandomBrightness(0.2, value_range=(0, 1))
    ),
    "reduced over features": _alone(
        lambda x: x - ops.mean(x, -1, keepdims=True)
    ),
    "sorted features": _alone(lambda x: ops.sort(x, axis=-1)),
    "softmax of features": _alone(ops.softmax),
    "flattened and back": _alone(
        lambda x: ops.reshape(ops.reshape(x, (-1,)) * 2, (-1, 8))
    ),
    "axes exchanged": _alone(
        lambda x: ops.transpose(ops.cumsum(ops.transpose(x), axis=0))
    ),
    "outer products": _alone(
        lambda x: ops.sum(x[:, :, None] * x[:, None, :], -1)
    ),
    "divided by the constant of a batch": _alone(lambda x: x / 16.0),
    "flipped twice": _alone(lambda x: ops.flip(ops.flip(x, 0) * 2, 0)),
    "large and small": _alone(lambda x: (x + 1e4) - 1e4),
    "float64": case(
        dense(8, dtype="float64"), lambda: layers.Dense(1, dtype="float64")
    ),
    "bfloat16": case(dense(8), dense(1), precision="mixed_bfloat16"),
}
STATES = {
    "mean": _state(lambda n, x: 0.9 * n + 0.1 * ops.mean(x, 0)),
    "mean of squares": _state(lambda n, x: 0.9 * n + 0.1 * ops.mean(x**2, 0)),
    "declared sum": _state(lambda n, x: 0.9 * n + ops.sum(x, 0), "sum"),
    "sum": _state(lambda n, x: 0.9 * n + 0.1 * ops.sum(x, 0)),
    "count of examples": _state(
        lambda n, x: n + ops.cast(ops.shape(x)[0], "float32")
    ),
    "only the first": _state(
        lambda n, x: ops.max(x, 0) + 0 * n, "only_first_replica"
    ),
    "steps": _state(lambda n, x: n + 1, dtype="int32"),
}
ADDED = {
    "mean of squares": _added(lambda x: 0.1 * ops.mean(x**2)),
    "sum over features": _added(lambda x: 0.1 * ops.mean(ops.sum(x**2, -1))),
    "declared sum": _added(lambda x: 0.01 * ops.sum(x**2), added_losses="sum"),
    "activity": case(dense(4, activity_regularizer="l2"), dense(1)),
}
LOSSES = {
    "classes": case(dense(3), data=(X, CLASSES), loss=SPARSE(from_logits=True)),
    "weights": case(dense(1), data=(X, Y, WEIGHTS)),
    "own": case(dense(1), loss=lambda y, p: ops.mean(ops.abs(y - p), -1)),
    "two outputs": case(model=_two_outputs, data=(X, {"a": Y, "b": -Y})),
    "noise": case(dense(1), kind=_Noise),
    "a step of one's own": case(
        model=lambda: keras.Sequential([keras.Input((3,)), layers.Dense(1)]),
        kind=_OwnStep,
    ),
    "global": case(dense(1), kind=_Global),
    "gathered": case(dense(1), kind=_Gathered),
}
SOUND = {
    f"{kind}: {name}": one
    for kind, group in (
        ("layers", LAYERS),
        ("state", STATES),
        ("added", ADDED),
        ("loss", LOSSES),
    )
    for name, one in group.items()
}
