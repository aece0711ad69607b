"""Models, losses and data of which a Trainer makes what `fit` makes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import Trainer, UserError

# The last batch has a single example: of 3 replicas, two get none of it.
SIZE, BATCH = 17, 8
RNG = np.random.default_rng(4)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


X, A, B = normal(SIZE, 5), normal(SIZE, 1), normal(SIZE, 1)
W, V = (RNG.uniform(0.5, 2.0, SIZE).astype("float32") for _ in range(2))
TABLE = normal(4, 5)


@dataclasses.dataclass(eq=False)
class Case:
    """What a model is made of, compiled with and trained on.

    Attributes:
        name: of the case.
        model: makes it.
        compiled: the arguments of `compile`, or a function that makes them.
        data: those of `fit`.
        refused: what a Trainer's sentence says where a batch is cut.
        everywhere: whether it says so on a whole batch, too.
        pooled: logs that differ by design: averages of batches in Keras.
        options: arguments of the Trainer.
    """

    name: str
    model: Callable[[], keras.Model]
    compiled: Any
    data: dict[str, Any]
    refused: str | None = None
    everywhere: bool = False
    pooled: tuple[str, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def __name__(self):
        return self.name

    def made(self):
        keras.utils.set_random_seed(1)
        model, options = self.model(), self.compiled
        options = dict(options() if callable(options) else options)
        model.compile(keras.optimizers.SGD(0.05), **options)
        return model

    @functools.cached_property
    def arguments(self):
        data = {"epochs": 2, "verbose": 0, **self.data}
        if not isinstance(data["x"], tf.data.Dataset):
            data |= {"batch_size": BATCH, "shuffle": False}
        return data

    @functools.cached_property
    def expected(self):
        """Logs and weights of `fit`."""
        model = self.made()
        history = model.fit(**self.arguments).history
        return history, model.get_weights()

    def __call__(self, plugin):
        model, options = self.made(), dict(self.options)
        if plugin.name == "one_device":
            options["accumulation_steps"] = 2
        try:
            trainer = Trainer(model, strategy=plugin, **options)
            found = trainer.fit(**self.arguments).history
        except UserError as error:
            return {"refused": str(error)}
        except Exception as error:  # noqa: BLE001 - of one case, not of all
            return {"crashed": f"{type(error).__name__}: {error}"}
        history, weights = self.expected
        largest = max(
            np.abs(ours - its).max(initial=0.0)
            for ours, its in zip(model.get_weights(), weights, strict=True)
        )
        logs = {
            f"log {key}": (np.array(found[key]), np.array(values))
            for key, values in history.items()
            if key in found and key not in self.pooled
        }
        names = " ".join(sorted(found)), " ".join(sorted(history))
        return {"weights": largest, "names": names, **logs}


def dense(*names):
    """A model with an output for each of the names."""

    def make():
        inputs = keras.Input((5,))
        made = [keras.layers.Dense(1, name=name)(inputs) for name in names]
        return keras.Model(inputs, made if len(names) > 1 else made[0])

    return make


def shared():
    """Two outputs of one layer, which have one name in Keras."""
    inputs, head = keras.Input((5,)), keras.layers.Dense(1, name="head")
    return keras.Model(inputs, [head(inputs), head(2.0 * inputs)])


def towers():
    """Two outputs of one nested model."""
    tower = keras.Sequential([keras.layers.Dense(1)], name="tower")
    inputs = [keras.Input((5,)), keras.Input((5,))]
    return keras.Model(inputs, [tower(one) for one in inputs])


# Parts of a batch that are not per example.


class WithTable(keras.Model):
    """Compares each example with each row of a table."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, inputs):
        if isinstance(inputs, dict):
            inputs = inputs["a_table"], inputs["x"]
        table, x = inputs[0], inputs[1]
        scale = inputs[2] if len(inputs) > 2 else 1.0
        scores = keras.ops.matmul(self.dense(x), keras.ops.transpose(table))
        return keras.ops.sum(scores * scale, -1, keepdims=True)


class OfPairs(keras.Model):
    """An output for two rows of the input."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        found = self.dense(x)
        half = keras.ops.shape(x)[0] // 2
        return found[:half] - found[half:]


class OfNodes(keras.Model):
    """Passes messages along the edges of one graph."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        nodes, edges = inputs
        found = self.dense(nodes)
        messages = tf.gather(found, edges[0])
        return found + tf.math.unsorted_segment_sum(
            messages, edges[1], tf.shape(nodes)[0]
        )


def with_table(put):
    """Batches of examples, with parts that are none of theirs."""
    pairs = tf.data.Dataset.from_tensor_slices((X, A)).batch(BATCH)
    return {"x": pairs.map(lambda x, y: (put(x), y))}


EDGES = RNG.integers(0, SIZE, (2, 30))
NOT_PER_EXAMPLE = "does not have one row for each example"
PARTS = [
    Case(
        "table",
        WithTable,
        {"loss": "mse", "metrics": ["mae"]},
        with_table(lambda x: (tf.constant(TABLE), x)),
        refused=rf"x\[0\] {NOT_PER_EXAMPLE}",
        pooled=("loss",),
    ),
    Case(
        "table_by_name",
        WithTable,
        {"loss": "mse"},
        with_table(lambda x: {"a_table": tf.constant(TABLE), "x": x}),
        refused=rf"x\['a_table'\] {NOT_PER_EXAMPLE}",
        pooled=("loss",),
    ),
    Case(
        "table_of_a_batch",
        WithTable,
        {"loss": "mse"},
        with_table(lambda x: (tf.constant(X[:BATCH]), x)),
        refused=rf"x\[0\] {NOT_PER_EXAMPLE}",
        pooled=("loss",),
    ),
    Case(
        "row",
        WithTable,
        {"loss": "mse"},
        with_table(lambda x: (tf.constant(TABLE[:1]), x)),
        refused=rf"x\[0\] {NOT_PER_EXAMPLE}",
        pooled=("loss",),
    ),
    Case(
        "number",
        WithTable,
        {"loss": "mse"},
        with_table(lambda x: (x[:1], x, tf.constant(0.5))),
        refused=rf"x\[\d\] {NOT_PER_EXAMPLE}",
        pooled=("loss",),
    ),
    Case(
        "pairs",
        OfPairs,
        {"loss": "mse"},
        with_table(lambda x: tf.concat([x, x**2], 0)),
        refused=f"x {NOT_PER_EXAMPLE}",
    ),
    Case(
        "graph",
        OfNodes,
        {"loss": "mse", "metrics": ["mae"]},
        {"x": tf.data.Dataset.from_tensors(((X, EDGES), A))},
        refused=rf"x\[1\] {NOT_PER_EXAMPLE}",
    ),
]
# In Keras the last output alone has the log of a shared name.
NAMES = [
    Case(
        "shared",
        shared,
        {
            "loss": ["mse", "mae"],
            "loss_weights": [1.0, 2.0],
            "weighted_metrics": [["mae"], ["mse"]],
        },
        {"x": X, "y": [A, B], "sample_weight": [W, V]},
        pooled=("head_loss",),
    ),
    Case(
        "shared_model",
        towers,
        {"loss": "mse"},
        {"x": [X, 2.0 * X], "y": [A, B]},
        pooled=("tower_loss",),
    ),
]


# Crossentropies compute from the logits that Keras leaves on probabilities.


def confident():
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3, "softmax", name="last")]
    )


def of_examples(y, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y, y_pred)


def of_batch(y, y_pred):
    return keras.ops.mean(of_examples(y, y_pred))


class Largest(keras.Metric):
    """The largest loss of an example."""

    def __init__(self):
        super().__init__(name="largest")
        self.kept = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        largest = keras.ops.max(of_examples(y, y_pred))
        self.kept.assign(keras.ops.maximum(self.kept, largest))

    def result(self):
        return self.kept + 0.0


CLASSES = {"x": 300.0 * X, "y": RNG.integers(0, 3, SIZE)}
CROSSENTROPY = "sparse_categorical_crossentropy"
LOGITS = [
    Case(
        "crossentropy",
        confident,
        {"loss": of_examples, "metrics": [CROSSENTROPY, of_examples]},
        CLASSES,
    ),
    Case(
        "crossentropy_of_a_batch",
        confident,
        lambda: {"loss": CROSSENTROPY, "metrics": [of_batch, Largest()]},
        CLASSES,
        refused="'of_batch' .* does not add up",
        pooled=("of_batch",),
    ),
    Case(
        "recomputed",
        confident,
        {"loss": CROSSENTROPY},
        CLASSES,
        options={"recompute": ["last"]},
    ),
]


# Structures of losses and metrics.


def nested():
    inputs = keras.Input((5,))
    b, c, d = (keras.layers.Dense(1, name=name)(inputs) for name in "bcd")
    return keras.Model(inputs, {"a": {"x": b, "y": [c]}, "d": d})


def by_name():
    inputs = keras.Input((5,))
    return keras.Model(
        inputs, {name: keras.layers.Dense(1)(inputs) for name in "ab"}
    )


def distance(y, y_pred):
    """From several targets to as many outputs."""
    pairs = zip(*map(keras.tree.flatten, (y, y_pred)), strict=True)
    return sum(tf.reduce_mean(tf.abs(a - b), -1) for a, b in pairs) ** 2


def of_batch_mean(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2)


def merged(y, y_pred):
    """Values whose rows are no examples."""
    return tf.reshape(tf.concat([y - y_pred, y], -1) ** 2, [-1])


class AddsALoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


def adding():
    inputs = keras.Input((5,))
    return keras.Model(inputs, AddsALoss()(keras.layers.Dense(2)(inputs)))


class WithLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return keras.ops.mean(keras.ops.abs(y - y_pred)) + sum(self.losses)


def with_loss():
    inputs = keras.Input((5,))
    found = keras.layers.Dense(1, kernel_regularizer="l2")(inputs)
    return WithLoss(inputs, AddsALoss()(found))


def mse(reduction):
    return lambda: {"loss": keras.losses.MeanSquaredError(reduction=reduction)}


ONE = {"x": X, "y": A}
WEIGHED = {**ONE, "sample_weight": W}
OF_NESTED = {"a": {"x": A, "y": [B]}, "d": A}
SCALAR = "returned a scalar"
# By output, Keras logs averages of batches, of which each counts as much.
OF_A, OF_BOTH = ("a_loss",), ("a_loss", "b_loss")
STRUCTURES = [
    Case(
        "several_losses",
        dense("a"),
        {"loss": ["mse", "mae"], "loss_weights": [1.0, 3.0]},
        {"x": X, "y": [A]},  # Of a bare array Keras takes the first loss.
        pooled=OF_A,
    ),
    Case(
        "several_losses_by_output",
        by_name,
        {
            "loss": {"a": ["mse", "mae"], "b": "mse"},
            "loss_weights": {"a": [0.5, 2.0], "b": 3.0},
        },
        {"x": X, "y": {"a": A, "b": B}},
        pooled=OF_BOTH,
    ),
    Case(
        "nested",
        nested,
        {
            "loss": {"a": {"x": "mse", "y": ["mae"]}, "d": "mse"},
            "loss_weights": {"a": {"x": 1.0, "y": [2.0]}, "d": 3.0},
            "metrics": {"a": {"x": ["mae"], "y": [["mse"]]}, "d": ["mse"]},
        },
        {"x": X, "y": OF_NESTED},
        pooled=("a/x_loss", "a/y/c_loss", "d_loss"),
    ),
    Case(
        "nested_in_part",
        nested,
        {"loss": {"a": {"x": "mse"}}},
        {"x": X, "y": OF_NESTED},
    ),
    Case(
        "in_part",
        dense("a", "b", "c"),
        {"loss": ["mse", None, "mae"]},
        {"x": X, "y": [A, B]},
        pooled=("a_loss", "c_loss"),
    ),
    Case(
        "of_several_outputs",
        by_name,
        {
            "loss": [distance, {"a": "mse", "b": "mae"}],
            "loss_weights": [0.5, {"a": 1.0, "b": 3.0}],
        },
        {"x": X, "y": {"a": A, "b": B}},
        pooled=(*OF_BOTH, "a_b_loss"),
    ),
    Case(
        "of_several_outputs_of_a_list",
        dense("a", "b"),
        {"loss": (distance, [None, "mae"])},
        {"x": X, "y": [A, B]},
        pooled=("b_loss", "a_b_loss"),
    ),
    Case(
        "of_several_outputs_nested",
        nested,
        {"loss": {"a": [distance, {"x": "mse"}], "d": "mse"}},
        {"x": X, "y": OF_NESTED},
        pooled=("a_loss", "a/x_loss", "d_loss"),
    ),
    Case("scalar", dense("a"), {"loss": of_batch_mean}, ONE, refused=SCALAR),
    Case(
        "scalar_weighed",
        dense("a"),
        {"loss": of_batch_mean},
        WEIGHED,
        refused=SCALAR,
    ),
    Case(
        "dice",
        lambda: keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(1, "sigmoid")]
        ),
        lambda: {"loss": keras.losses.Dice()},
        {"x": X, "y": (A > 0).astype("float32")},
        refused=SCALAR,
    ),
    Case(
        "merged_rows",
        dense("a"),
        {"loss": merged},
        ONE,
        refused="must have one row for each example",
    ),
    Case("reduction_none", dense("a"), mse(None), WEIGHED),
    Case("reduction_none_by_name", dense("a"), mse("none"), ONE),
    Case("sum", dense("a"), mse("sum"), WEIGHED, pooled=("loss",)),
    Case("added", adding, {}, {"x": X, "y": A}),
    Case(
        "loss_of_the_model",
        with_loss,
        {"metrics": ["mae"]},
        ONE,
        refused="WithLoss.compute_loss is overridden, and returns one number",
    ),
    Case(
        "by_shape",
        confident,
        {"loss": "crossentropy", "metrics": ["accuracy"]},
        CLASSES,
    ),
    Case(
        "no_probabilities",
        lambda: keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(1, "sigmoid")]
        ),
        {"loss": "binary_crossentropy"},
        ONE,
    ),
    Case(
        "metrics_of_both_kinds",
        dense("a"),
        {"loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mae", "mse"]},
        WEIGHED,
    ),
    Case(
        "metrics_of_both_kinds_by_output",
        dense("a", "b"),
        {
            "loss": "mse",
            "metrics": [["mae"], None],
            "weighted_metrics": {"a": ["mae"], "b": "mae"},
        },
        {"x": X, "y": [A, B], "sample_weight": [W, V]},
        pooled=OF_BOTH,
    ),
    Case(
        "metrics_by_class",
        confident,
        {
            "loss": CROSSENTROPY,
            "metrics": ["accuracy"],
            "weighted_metrics": ["accuracy", CROSSENTROPY],
        },
        {**CLASSES, "class_weight": {0: 0.3, 1: 2.0, 2: 5.0}},
    ),
]


# A sparse matrix may name a place several times: its values add up.


def sparse():
    inputs = keras.Input((5,), sparse=True)
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


PLACES = np.repeat(np.argwhere(X > 0.5), 2, axis=0)
TWICE = tf.SparseTensor(PLACES, normal(len(PLACES)), X.shape)
SPARSE = [Case("sparse", sparse, {"loss": "mse"}, {"x": TWICE, "y": A})]
ALL = [*PARTS, *NAMES, *LOGITS, *STRUCTURES, *SPARSE]
LONG = ("mirrored_2", "one_device", "central_storage_2")
CASES = dict.fromkeys(ALL, ("default", "mirrored_3", *LONG))
