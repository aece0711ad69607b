"""What is compared: classes of Keras, each on data that may go wrong.

33 examples in batches of 16 make two even steps and one of a single example:
replicas then have uneven pieces of a batch, or empty ones.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from tests.exactness import metric_models

SIZE, BATCH, STEPS, TIME = 33, 16, 3, 4
KINDS = ("losses", "metrics", "optimizers")
COLUMNS = {
    "losses": ("plain", "weights", "mask", "mask and weights"),
    "metrics": ("plain", "weights", "mask", "mask and weights"),
    "optimizers": (
        *("plain", "embedding", "embedding as matrix", "clipnorm"),
        *("clipvalue", "global_clipnorm", "weight_decay", "use_ema"),
    ),
}


class Case(NamedTuple):
    """One cell of the table.

    Attributes:
        kind: one of `KINDS`.
        row: the class's name.
        column: how it is used, one of `COLUMNS[kind]`.
        model: makes the model.
        arrays: inputs, targets, and perhaps weights.
        loss: a loss.
        optimizer: makes the optimizer.
        metric: makes the metric, if one is compared.
        reference: makes a model with the same mathematics for Keras, if it
            needs another one.
    """

    kind: str
    row: str
    column: str
    model: Callable[[], keras.Model]
    arrays: tuple[np.ndarray, ...]
    loss: Any
    optimizer: Callable[[], keras.optimizers.Optimizer]
    metric: Callable[[], keras.Metric] | None = None
    reference: Callable[[], keras.Model] | None = None

    @property
    def group(self) -> str:
        """Equal for cases that one model on the same data can answer."""
        if self.kind != "metrics":
            return self.name
        return f"{metric_models.family(self.row)}/{self.column}"

    @property
    def name(self) -> str:
        """Names the cell."""
        return f"{self.kind}/{self.row}/{self.column}"


def classes(module: Any, base: type) -> dict[str, type]:
    """The classes of a module of Keras that can be used, by name."""
    return {
        name: kind
        for name, kind in sorted(vars(module).items())
        if inspect.isclass(kind)
        and issubclass(kind, base)
        and kind is not base
        and kind.__name__ == name
    }


def all_cases() -> Iterator[Case]:
    """Every cell."""
    for name, kind in classes(keras.losses, keras.losses.Loss).items():
        yield from _loss_cases(name, kind)
    names = sorted(metric_models.keras_classes())
    measured = [case for name in names for case in _metric_cases(name)]
    yield from sorted(measured, key=lambda case: case.group)
    found = classes(keras.optimizers, keras.optimizers.Optimizer)
    for name, kind in found.items():
        yield from _optimizer_cases(name, kind)


ACTIVATIONS = {
    **dict.fromkeys(
        ("BinaryCrossentropy", "BinaryFocalCrossentropy", "Dice", "Tversky"),
        "sigmoid",
    ),
    **dict.fromkeys(
        (
            *("CategoricalCrossentropy", "CategoricalFocalCrossentropy"),
            *("CategoricalGeneralizedCrossEntropy", "KLDivergence"),
            "SparseCategoricalCrossentropy",
        ),
        "softmax",
    ),
    **dict.fromkeys(("Poisson", "MeanSquaredLogarithmicError"), "softplus"),
}


def _loss_cases(name: str, kind: type) -> Iterator[Case]:
    for column in COLUMNS["losses"]:
        masked = "mask" in column
        if name in ("CTC", "Circle") and masked:
            continue  # Their outputs have no steps that could be masked.
        x, y = _sequences(name) if masked or name == "CTC" else _vectors(name)
        weights = _weights(in_time=masked)
        arrays = (x, y, *([weights] if "weights" in column else []))
        yield Case(
            *("losses", name, column),
            model=_model(
                x.shape[1:],
                ACTIVATIONS.get(name),
                masked=masked,
                normalized=name == "Circle",
            ),
            arrays=arrays,
            loss=kind(),
            optimizer=lambda: keras.optimizers.SGD(0.1),
        )


def _metric_cases(name: str) -> Iterator[Case]:
    family = metric_models.family(name)
    for column in COLUMNS["metrics"]:
        x, y, weights = metric_models.data(family)
        masked = "mask" in column
        if masked:
            x, y = _in_time(x), _in_time(y)
        yield Case(
            *("metrics", name, column),
            model=_identity(x.shape[1:], masked=masked),
            arrays=(x, y, *([weights] if "weights" in column else [])),
            loss=None,
            optimizer=lambda: keras.optimizers.SGD(0.1),
            metric=next(iter(metric_models.made(name))),
        )


def _two_optimizers(**given: Any) -> keras.optimizers.Optimizer:
    default = keras.optimizers.SGD(0.05, **given)
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(default)
    )


AROUND_ANOTHER = {
    "LossScaleOptimizer": lambda **given: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, **given)
    ),
    "MultiOptimizer": _two_optimizers,
}


def _optimizer_cases(name: str, kind: type) -> Iterator[Case]:
    options = {
        "clipnorm": {"clipnorm": 0.1},
        "clipvalue": {"clipvalue": 0.02},
        "global_clipnorm": {"global_clipnorm": 0.1},
        "weight_decay": {"weight_decay": 0.1},
        "use_ema": {"use_ema": True, "ema_momentum": 0.5},
    }
    make = AROUND_ANOTHER.get(name) or functools.partial(kind, 0.05)
    for column in COLUMNS["optimizers"]:
        given = options.get(column, {})
        x, y = _vectors("MeanSquaredError")
        if "embedding" in column:
            x = np.random.default_rng(3).integers(0, 4, (SIZE, TIME))
        yield Case(
            *("optimizers", name, column),
            model=_embedding_model
            if "embedding" in column
            else _model(x.shape[1:]),
            reference=_matrix_model if "matrix" in column else None,
            arrays=(x, y),
            loss=keras.losses.MeanSquaredError(),
            optimizer=functools.partial(make, **given),
        )


def _dense(units: int, seed: int, activation: str | None = None) -> Any:
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=keras.initializers.GlorotUniform(seed),
    )


def _model(
    shape: tuple[int, ...],
    activation: str | None = None,
    *,
    masked: bool = False,
    normalized: bool = False,
) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        inputs = keras.Input(shape)
        hidden = keras.layers.Masking()(inputs) if masked else inputs
        hidden = _dense(8, 1, "tanh")(hidden)
        outputs = _dense(3, 2, activation)(hidden)
        if normalized:
            outputs = keras.layers.UnitNormalization()(outputs)
        return keras.Model(inputs, outputs)

    return make


def _embedding_model() -> keras.Model:
    table = keras.layers.Embedding(
        4, 8, embeddings_initializer=keras.initializers.RandomNormal(seed=1)
    )
    inputs = keras.Input((TIME,), dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(table(inputs))
    return keras.Model(inputs, _dense(3, 2)(hidden))


def _matrix_model() -> keras.Model:
    """The same, with a product in place of looking rows up."""
    inputs = keras.Input((TIME,), dtype="int32")
    one_hot = keras.layers.CategoryEncoding(4, output_mode="one_hot")
    table = keras.layers.Dense(
        8,
        use_bias=False,
        kernel_initializer=keras.initializers.RandomNormal(seed=1),
        name="embedding",  # Muon takes those so named in a way of its own.
    )
    hidden = keras.layers.GlobalAveragePooling1D()(table(one_hot(inputs)))
    return keras.Model(inputs, _dense(3, 2)(hidden))


def _identity(
    shape: tuple[int, ...], *, masked: bool
) -> Callable[[], keras.Model]:
    """A model whose outputs are its inputs, with a mask of its own."""

    def make() -> keras.Model:
        inputs = keras.Input(shape)
        # Exactly zero nowhere else: the random numbers are above it.
        hidden = keras.layers.Masking()(inputs) if masked else inputs
        scale = keras.layers.Rescaling(1.0)
        scale.supports_masking = True
        return keras.Model(inputs, scale(hidden))

    return make


def _weights(*, in_time: bool) -> np.ndarray:
    shape = (SIZE, TIME) if in_time else (SIZE,)
    random = np.random.default_rng(7)
    return random.uniform(0.2, 2.0, shape).astype("float32")


def _targets(name: str, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(11)
    labels = random.integers(0, 3, shape)
    if name in (
        "CategoricalGeneralizedCrossEntropy",
        "Circle",
        "SparseCategoricalCrossentropy",
    ):
        return labels.astype("int32")
    if name == "CTC":
        return random.integers(1, 3, (SIZE, 2)).astype("int32")
    if name.startswith("Categorical") or name in ("KLDivergence", "Dice"):
        return np.eye(3, dtype="float32")[labels]
    if "Hinge" in name:
        return random.choice([-1.0, 1.0], (*shape, 3)).astype("float32")
    if name.startswith("Binary") or name == "Tversky":
        return random.integers(0, 2, (*shape, 3)).astype("float32")
    return random.uniform(0.5, 2.0, (*shape, 3)).astype("float32")


def _vectors(name: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(13)
    x = random.normal(size=(SIZE, 5)).astype("float32")
    return x, _targets(name, (SIZE,))


def _sequences(name: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(17)
    x = random.normal(size=(SIZE, TIME, 5)).astype("float32")
    return _padded(x), _targets(name, (SIZE, TIME))


def _in_time(part: np.ndarray) -> np.ndarray:
    """Examples as steps in time, of which some are masked."""
    return _padded(np.stack([part] * TIME, axis=1) + 0)


def _padded(x: np.ndarray) -> np.ndarray:
    """Each example has from one to all steps; the last ones are padding."""
    lengths = np.random.default_rng(19).integers(1, TIME + 1, SIZE)
    return np.where(
        np.arange(TIME)[None, :, None] < lengths[:, None, None], x, 0
    ).astype(x.dtype)
