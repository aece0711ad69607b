"""Models that break the promise: what they learn depends on the cut."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.probe.models import IMAGES, Y, case, dense, own
from trainer import Trainer, average


def _mixing(function, **options):
    return case(dense(8), own(lambda s, x, t: function(x)), dense(1), **options)


def _state(value, aggregation=None, dtype="float32", shape=(6,)):
    def build(layer, _):
        options = {} if aggregation is None else {"aggregation": aggregation}
        layer.kept = layer.add_weight(
            shape=shape,
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


def _added(function):
    def call(layer, x, training):
        layer.add_loss(function(x))
        return x

    return case(dense(4), own(call), dense(1))


def _loss(function, **options):
    return case(dense(8, "tanh"), dense(1), loss=function, **options)


def _centred(x):
    return x - ops.mean(x, axis=0, keepdims=True)


class _PerExample(Trainer):
    def per_example_loss(self, x, y, y_pred):
        error = ops.mean(ops.square(y - y_pred), -1)
        return error / ops.max(error)


class _Focus(Trainer):
    def per_example_loss(self, x, y, y_pred):
        error = ops.abs(y - y_pred)[:, 0]
        return error * ops.cast(error > ops.mean(error), "float32")


class _InCall(keras.Model):
    """Mixes between its layers, not in one."""

    def __init__(self, mix):
        super().__init__()
        self.first, self.last = layers.Dense(8), layers.Dense(1)
        self.mix = mix

    def call(self, x, training=False):
        return self.last(self.mix(self.first(x)))


class _Forward(Trainer):
    def forward(self, x, *, training):
        y = self.model(x, training=training)
        return y - tf.reduce_mean(y, axis=0, keepdims=True)


class _OwnStep(Trainer):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = _centred(self.model(x, training=True))
            error = ops.sum(ops.square(y - y_pred))
            count = ops.cast(ops.shape(x)[0], "float32")
            loss = average(error, count)
        variables = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, loss, variables), variables)
        return {"loss": loss}


@tf.custom_gradient
def _mixing_gradient(x):
    def gradient(upstream):
        return upstream - tf.reduce_mean(upstream, axis=0, keepdims=True)

    return tf.identity(x), gradient


def _sort(x):
    return ops.sort(x, axis=0)


def _train_only(layer, x, training):
    return _centred(x) if training else x


def _eval_only(layer, x, training):
    return x if training else x / ops.max(ops.abs(x))


def _keyed(layer, x, training):
    noise = keras.random.normal((1, 8), seed=layer.seed)
    return x + noise * ops.mean(x)


def _with_seed(layer, _):
    layer.seed = keras.random.SeedGenerator(1)


OUTPUTS = {
    "standardized over the batch": _mixing(
        lambda x: (x - ops.mean(x, 0)) / (1e-3 + ops.std(x, 0))
    ),
    "divided by the batch's norm": _mixing(lambda x: x / ops.norm(x)),
    "cumulative sum": _mixing(lambda x: ops.cumsum(x, axis=0)),
    "softmax over the batch": _mixing(lambda x: ops.softmax(x, axis=0)),
    "scaled by the mean of all": _mixing(lambda x: x * ops.exp(ops.mean(x))),
    "gram matrix": _mixing(lambda x: (x @ ops.transpose(x)) @ x / 100),
    "rolled": _mixing(lambda x: 0.5 * x + 0.5 * ops.roll(x, 1, axis=0)),
    "flipped": _mixing(lambda x: 0.9 * x + 0.1 * ops.flip(x, axis=0)),
    "shifted by the first": _mixing(lambda x: x - x[:1]),
    "minus the last": _mixing(lambda x: x - x[-1:]),
    "minus the minimum": _mixing(lambda x: x - ops.min(x, axis=0)),
    "divided by the largest": _mixing(lambda x: x / ops.max(ops.abs(x))),
    "ranks": _mixing(lambda x: x + ops.cast(ops.argsort(x, 0), "float32")),
    "sorted": _mixing(lambda x: x + _sort(x)),
    "gated by the mean": _mixing(lambda x: x * ops.sigmoid(ops.mean(x))),
    "quantile": _mixing(lambda x: x - ops.quantile(x, 0.5, axis=0)),
    "batch size as a feature": _mixing(
        lambda x: x * ops.cast(ops.shape(x)[0], "float32")
    ),
    "divided by the root of the size": _mixing(
        lambda x: x / ops.sqrt(ops.cast(ops.shape(x)[0], "float32"))
    ),
    "attention between examples": _mixing(
        lambda x: ops.softmax(x @ ops.transpose(x)) @ x
    ),
    "nearest neighbour": _mixing(
        lambda x: (
            x
            + ops.take(
                x,
                ops.argmin(
                    ops.sum((x[:, None] - x[None]) ** 2, -1)
                    + 1e6 * ops.eye(ops.shape(x)[0]),
                    -1,
                ),
                axis=0,
            )
        )
    ),
    "whitened": _mixing(lambda x: x @ (ops.transpose(x) @ x) / 100),
    "position in the batch": _mixing(
        lambda x: (
            x + 0.1 * ops.cast(ops.arange(ops.shape(x)[0])[:, None], "float32")
        )
    ),
    "weakly": _mixing(lambda x: x + 0.02 * ops.mean(x, 0, keepdims=True)),
    "in a lambda": case(dense(8), lambda: layers.Lambda(_centred), dense(1)),
    "unit norm over the batch": case(
        dense(8), lambda: layers.UnitNormalization(axis=0), dense(1)
    ),
    "in the call of a model": case(model=lambda: _InCall(_centred)),
    "in the call, by the maximum": case(
        model=lambda: _InCall(lambda x: x / ops.max(x))
    ),
    "in training only": case(dense(8), own(_train_only), dense(1)),
    "in evaluation only": case(dense(8), own(_eval_only), dense(1)),
    "with noise": case(dense(8), own(_keyed, _with_seed), dense(1)),
    "in a forward": case(dense(8), dense(1), kind=_Forward),
    "in a step of one's own": case(dense(8), dense(1), kind=_OwnStep),
    "in a gradient": case(
        dense(8), own(lambda s, x, t: _mixing_gradient(x)), dense(1)
    ),
    "over images": case(
        lambda: layers.Conv2D(4, 3),
        own(lambda s, x, t: x - ops.mean(x, (0, 1, 2))),
        lambda: layers.GlobalAveragePooling2D(),
        dense(1),
        data=(IMAGES, Y),
    ),
    "instance norm by mistake": case(
        lambda: layers.Conv2D(4, 3),
        own(lambda s, x, t: x / (1e-3 + ops.std(x, (0, 1)))[None, None]),
        lambda: layers.GlobalAveragePooling2D(),
        dense(1),
        data=(IMAGES, Y),
    ),
}
STATES = {
    "sum and a power": _state(lambda n, x: 0.9 * n**2 + ops.sum(x, 0)),
    "minimum": _state(lambda n, x: ops.minimum(n, ops.min(x, 0) - 1)),
    "variance": _state(lambda n, x: 0.5 * n + 0.5 * ops.var(x, 0)),
    "deviation": _state(lambda n, x: 0.9 * n + 0.1 * ops.std(x, 0)),
    "norm": _state(lambda n, x: ops.norm(x, axis=0) + 0 * n),
    "declared a sum, with a maximum": _state(
        lambda n, x: ops.maximum(0.9 * n, 3.0) + ops.sum(x, 0), "sum"
    ),
    "integer count": _state(
        lambda n, x: n + ops.sum(ops.cast(x > 0, "int32"), 0), dtype="int32"
    ),
    "declared a sum": _state(
        lambda n, x: 0.9 * n + 0.1 * ops.mean(x, 0), "sum"
    ),
    "declared a mean": _state(lambda n, x: n + ops.sum(x, 0), "mean"),
    "product of means": _state(lambda n, x: n * (1 + ops.mean(x, 0)) ** 2),
}
ADDED = {
    "sum of squares": _added(lambda x: 0.01 * ops.sum(x**2)),
    "norm": _added(lambda x: 0.1 * ops.norm(x)),
    "maximum": _added(lambda x: 0.1 * ops.max(x)),
    "covariance": _added(
        lambda x: 0.1 * ops.sum((ops.transpose(x) @ x) ** 2) / 1000
    ),
    "balance of experts": _added(
        lambda x: ops.sum(ops.mean(ops.softmax(x), 0) ** 2)
    ),
    "deviation": _added(lambda x: 0.1 * ops.mean(ops.std(x, axis=0))),
}
LOSSES = {
    "weighed by the batch's maximum": _loss(
        lambda y, p: ops.mean((y - p) ** 2, -1) / ops.max(ops.abs(y))
    ),
    "minus the batch's mean": _loss(
        lambda y, p: ops.mean((y - p - ops.mean(y - p)) ** 2, -1)
    ),
    "contrastive": _loss(
        lambda y, p: ops.logsumexp(p @ ops.transpose(p), -1) - y[:, 0]
    ),
    "pairs by broadcasting": _loss(
        lambda y, p: ops.mean((y - ops.transpose(p)) ** 2, -1)
    ),
    "softmax of errors": _loss(lambda y, p: ops.softmax((y - p)[:, 0] ** 2)),
    "hardest examples": _loss(
        lambda y, p: ops.relu(
            (y - p)[:, 0] ** 2 - 0.9 * ops.max((y - p)[:, 0] ** 2)
        )
    ),
    "divided by the size": _loss(
        lambda y, p: (
            ops.sum((y - p) ** 2, -1) / ops.cast(ops.shape(y)[0], "float32")
        )
    ),
    "in a Trainer": _loss("mse", kind=_PerExample),
    "in a Trainer, above the mean": _loss("mse", kind=_Focus),
}
BROKEN = {
    f"{kind}: {name}": one
    for kind, group in (
        ("output", OUTPUTS),
        ("state", STATES),
        ("added", ADDED),
        ("loss", LOSSES),
    )
    for name, one in group.items()
}
