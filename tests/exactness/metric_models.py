"""Metrics, models and data for the tests of metrics."""

import inspect

import keras
import numpy as np

SIZE, BATCH, STEPS = 33, 16, 6


class Custom(keras.Metric):
    """A metric with one variable, which `result` returns as it is."""

    start = 0.0

    def __init__(self, name=None):
        super().__init__(name=name)
        self.state = self.add_variable(
            (), keras.initializers.Constant(self.start), name="state"
        )

    def reset_state(self):
        self.state.assign(self.start)

    def result(self):
        return self.state


class RunningMax(Custom):
    start = -1e9

    def update_state(self, y, y_pred, sample_weight=None):
        largest = keras.ops.max(keras.ops.abs(y_pred - y))
        self.state.assign(keras.ops.maximum(self.state, largest))


class Product(Custom):
    start = 1.0

    def update_state(self, y, y_pred, sample_weight=None):
        self.state.assign(self.state * (1 + keras.ops.mean(y_pred)))


class LastValue(Custom):
    def update_state(self, y, y_pred, sample_weight=None):
        self.state.assign(y_pred[-1, 0])


class MeanOfBatches(keras.metrics.Mean):
    """Adds up over steps, but not over the pieces of a batch."""

    def update_state(self, y, y_pred, sample_weight=None):
        super().update_state(keras.ops.max(y_pred))


class Decaying(Custom):
    """Weighs by the weights, and depends on the order."""

    def update_state(self, y, y_pred, sample_weight=None):
        error = keras.ops.abs(y_pred - y)[:, 0]
        if sample_weight is not None:
            error = error * keras.ops.cast(sample_weight, error.dtype)
        self.state.assign(0.5 * self.state + keras.ops.sum(error))


class Keeping(Decaying):
    """What no reset forgets."""

    def reset_state(self):
        pass


class Several(keras.Metric):
    """A dict of its own variables; the second one is built late."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.each = None

    def update_state(self, y, y_pred, sample_weight=None):
        if self.each is None:
            shape = (y_pred.shape[-1],)
            self.each = self.add_variable(shape, "ones", name="each")
        self.total.assign_add(keras.ops.sum(y_pred))
        largest = keras.ops.max(y_pred, axis=0)
        self.each.assign(keras.ops.maximum(self.each, largest))

    def reset_state(self):
        self.total.assign(0.0)
        if self.each is not None:
            self.each.assign(keras.ops.ones_like(self.each))

    def result(self):
        return {"total": self.total, "first": self.each[0]}


def scalar_error(y, y_pred):
    """Of a whole batch, not of each example."""
    return keras.ops.sqrt(keras.ops.mean((y - y_pred) ** 2))


CUSTOM = {
    "running_max": RunningMax,
    "product": Product,
    "last_value": LastValue,
    "mean_of_batches": MeanOfBatches,
    "decaying": Decaying,
    "several": Several,
}
KEEPING = {"keeping": Keeping}
# Keras itself cannot weigh these.
UNWEIGHTED = {
    "scalar_error": lambda name=None: keras.metrics.MeanMetricWrapper(
        scalar_error, name=name
    ),
    "over_the_batch": lambda name=None: keras.metrics.PearsonCorrelation(
        axis=0, name=name
    ),
}

# What a class of keras.metrics needs to be made.
ARGUMENTS = {
    "AUC": {"num_thresholds": 20},
    "IoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "BinaryIoU": {},
    "MeanIoU": {"num_classes": 3},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "PrecisionAtRecall": {"recall": 0.6, "num_thresholds": 20},
    "RecallAtPrecision": {"precision": 0.6, "num_thresholds": 20},
    "SensitivityAtSpecificity": {"specificity": 0.6, "num_thresholds": 20},
    "SpecificityAtSensitivity": {"sensitivity": 0.6, "num_thresholds": 20},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
SPARSE = {
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
}
CLASSES = {"IoU", "MeanIoU", "Accuracy"}
ONE_HOT = {
    *("CategoricalAccuracy", "CategoricalCrossentropy", "CategoricalHinge"),
    *("TopKCategoricalAccuracy", "OneHotIoU", "OneHotMeanIoU"),
    *("F1Score", "FBetaScore", "KLDivergence"),
}
BINARY = {
    *("AUC", "BinaryAccuracy", "BinaryCrossentropy", "BinaryIoU"),
    *("FalseNegatives", "FalsePositives", "TrueNegatives", "TruePositives"),
    *("Precision", "Recall", "PrecisionAtRecall", "RecallAtPrecision"),
    *("SensitivityAtSpecificity", "SpecificityAtSensitivity"),
    *("Hinge", "SquaredHinge"),
}


class Measuring(keras.layers.Layer):
    """Measures what it sees: sums, in order, and in training alone."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.seen = keras.metrics.Mean(name="seen")
        self.largest = RunningMax(name="largest")
        self.in_training = keras.metrics.Mean(name="in_training")

    def call(self, x, training=False):
        self.seen(x)
        self.largest.update_state(keras.ops.zeros_like(x), x)
        if training:
            self.in_training.update_state(keras.ops.sum(x, axis=1))
        return x


def measuring_model():
    inputs = keras.Input((4,))
    outputs = Measuring()(identity(4)()(inputs))
    return keras.Model(inputs, outputs)


FAMILIES = ("one_hot", "sparse", "classes", "binary", "regression")
# Not metrics of targets and outputs.
ABSTRACT = {"Metric", "Mean", "Sum", "MeanMetricWrapper"}


def keras_classes():
    """Every metric of Keras that takes targets and outputs, by name."""
    return {
        name: kind
        for name, kind in vars(keras.metrics).items()
        if inspect.isclass(kind)
        and issubclass(kind, keras.Metric)
        and name not in ABSTRACT
        and vars(keras.metrics)[name].__name__ == name
    }


def family(name):
    """Which data a class of Keras is measured on."""
    for found, names in (
        ("sparse", SPARSE),
        ("classes", CLASSES),
        ("one_hot", ONE_HOT),
        ("binary", BINARY),
    ):
        if name in names:
            return found
    return "regression"


def made(name):
    """Metrics of a class of Keras: as it is, and in its rarer forms."""
    kind = keras_classes()[name]
    options = ARGUMENTS.get(name, {})
    yield lambda: kind(**options, name=name)
    if name in ("F1Score", "FBetaScore"):
        yield lambda: kind(average="macro", threshold=0.4, name=f"{name}_macro")


def metrics_of(kind):
    """Functions that make all metrics of a family."""
    found = [
        make
        for name in keras_classes()
        if family(name) == kind
        for make in made(name)
    ]
    if kind == "one_hot":
        found.append(
            lambda: keras.metrics.AUC(
                num_thresholds=20, multi_label=True, name="multi_label"
            )
        )
    return found


def data(kind):
    """Outputs, targets and weights of a family."""
    random = np.random.default_rng(5)
    weight = random.uniform(0.2, 2.0, SIZE).astype("float32")
    labels = random.integers(0, 3, SIZE)
    scores = random.dirichlet([1.0, 1.0, 1.0], SIZE).astype("float32")
    if kind == "one_hot":
        return scores, np.eye(3, dtype="float32")[labels], weight
    if kind == "sparse":
        return scores, labels[:, None].astype("int32"), weight
    if kind == "classes":
        guess = random.integers(0, 3, (SIZE, 1)).astype("float32")
        return guess, labels[:, None].astype("float32"), weight
    if kind == "binary":
        labels = (labels[:, None] > 0).astype("float32")
        return scores[:, :1], labels, weight
    outputs = random.uniform(0.1, 3.0, (SIZE, 4)).astype("float32")
    targets = outputs + random.normal(0, 0.3, (SIZE, 4)).astype("float32")
    return outputs, np.abs(targets).astype("float32"), weight


def nothing(y, y_pred):
    """A loss of zero."""
    return 0.0 * y_pred[:, 0]


def identity(width):
    """A model whose outputs are its inputs; its one weight is a factor."""

    def build():
        scale = keras.layers.EinsumDense(
            "bi,i->bi", (width,), kernel_initializer="ones"
        )
        return keras.Sequential([keras.Input((width,)), scale])

    return build


def every_family():
    """A model that has one output for each family."""
    inputs = {n: keras.Input((data(n)[0].shape[1],), name=n) for n in FAMILIES}
    outputs = {
        n: keras.layers.EinsumDense(
            "bi,i->bi", (one.shape[1],), kernel_initializer="ones"
        )(one)
        for n, one in inputs.items()
    }
    return keras.Model(inputs, outputs)


def batches(arrays, steps):
    """The batches of some steps; an epoch's last one is short."""
    starts = range(0, SIZE, BATCH)
    for step in range(steps):
        start = starts[step % len(starts)]
        yield [part[start : start + BATCH] for part in arrays]


def expected(make, arrays, steps):
    """What Keras' own metric makes of these batches on one device."""
    metric = make()
    for outputs, targets, *weight in batches(arrays, steps):
        metric.update_state(
            targets, outputs, sample_weight=weight[0] if weight else None
        )
    return as_numbers(metric.result())


def as_numbers(result):
    """A result as a flat array."""
    if isinstance(result, dict):
        result = list(result.values())
    return np.concatenate([np.ravel(r) for r in keras.tree.flatten(result)])
