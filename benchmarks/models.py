"""The models that all contenders train, and the arrays they train on.

Nothing here imports TensorFlow: a contender on JAX must not load it. Arrays
hold noise, since no step depends on what is in them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH = 64
CLASSES = 10
VOCABULARY = 1_000
TOKENS = 64
WIDTH = 64
BLOCKS = 2
HEADS = 4
ROWS = 100_000
FEATURES = 32
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Spec:
    """A model and the size of its data.

    Attributes:
        name: as on the command line.
        title: as in the table.
        shape: of one example.
        make: builds the Keras model, which returns logits of 10 classes.
        examples: rows of the arrays, a multiple of 100 batches.
        steps: in one turn, unless the command line says otherwise.
        vocabulary: numbers of an example are integers below this; `None` for
            float32 in [0, 1).
    """

    name: str
    title: str
    shape: tuple[int, ...]
    make: Callable[[], Any]
    examples: int
    steps: int
    vocabulary: int | None = None

    def arrays(self, examples: int | None = None) -> tuple[Any, Any]:
        """The examples and their int32 labels.

        Args:
            examples: how many, if not `self.examples`.
        """
        count = examples or self.examples
        random = np.random.default_rng(_SEED)
        shape = (count, *self.shape)
        x: Any
        if self.vocabulary is None:
            x = random.random(shape, dtype=np.float32)
        else:
            x = random.integers(0, self.vocabulary, shape, dtype=np.int32)
        return x, random.integers(0, CLASSES, count, dtype=np.int32)


def _mlp() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def _conv_net() -> Any:
    """The layers of `trainer_experiments.models.conv_net`."""
    import keras

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def _transformer() -> Any:
    """Two pre-norm blocks of attention, without dropout."""
    import keras

    tokens = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(tokens)
    # Learned positions: a bias for each of them.
    x = keras.layers.EinsumDense(
        "btw,wv->btv", (TOKENS, WIDTH), bias_axes="tv"
    )(x)
    for _ in range(BLOCKS):
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        x += keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y)
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        y = keras.layers.Dense(4 * WIDTH, activation="relu")(y)
        x += keras.layers.Dense(WIDTH)(y)
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, keras.layers.Dense(CLASSES)(x))


def _resnet20() -> Any:
    """ResNet-20 (He et al., 2015), with convolutions in its shortcuts."""
    import keras

    def conv(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = keras.layers.Conv2D(
            filters, size, strides, padding="same", use_bias=False
        )(x)
        return keras.layers.BatchNormalization()(x)

    image = keras.Input((32, 32, 3))
    x = keras.layers.ReLU()(conv(image, 16, 3))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            y = keras.layers.ReLU()(conv(x, filters, 3, strides))
            y = conv(y, filters, 3)
            if strides > 1:
                x = conv(x, filters, 1, strides)
            x = keras.layers.ReLU()(x + y)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(CLASSES)(x))


def _embedding() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((FEATURES,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES),
        ]
    )


# In the order of the table. Arrays take 160 MB at most, and a turn is an epoch
# or two, so that each has its share of what happens once an epoch.
MODELS = {
    spec.name: spec
    for spec in (
        Spec("mlp", "MLP 784-128-10", (784,), _mlp, 51_200, 1_600),
        Spec(
            "conv_net",
            "conv net of `experiments/mnist.gin`",
            (28, 28, 1),
            _conv_net,
            51_200,
            800,
        ),
        Spec(
            "transformer",
            "transformer, 2 blocks of width 64, 64 tokens",
            (TOKENS,),
            _transformer,
            12_800,
            200,
            vocabulary=VOCABULARY,
        ),
        Spec(
            "resnet20",
            "ResNet-20 on 32x32",
            (32, 32, 3),
            _resnet20,
            6_400,
            100,
        ),
        Spec(
            "embedding",
            "embedding of 100,000 rows of 64",
            (FEATURES,),
            _embedding,
            12_800,
            200,
            vocabulary=ROWS,
        ),
    )
}


def find(name: str) -> Spec:
    """The model of a name; `variables:N` is a stack of tiny dense layers."""
    if name in MODELS:
        return MODELS[name]
    kind, _, count = name.partition(":")
    if kind != "variables" or not count.isdigit():
        raise SystemExit(
            f"There is no model {name!r}. Valid: {', '.join(MODELS)}."
        )

    def make() -> Any:
        import keras

        # Each has a kernel and a bias.
        layers = [keras.layers.Dense(8) for _ in range(int(count) // 2 - 1)]
        return keras.Sequential(
            [keras.Input((8,)), *layers, keras.layers.Dense(CLASSES)]
        )

    return Spec(name, f"{count} variables", (8,), make, 12_800, 200)
