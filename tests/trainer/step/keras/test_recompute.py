"""Layers that are computed twice learn what they would have learned."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.conftest import ROOT
from trainer import Trainer, UserError

BATCH, WIDTH = 8, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3 * BATCH, 4, WIDTH)).astype("float32")
X[::3, 2:] = 0.0  # Masked by `Masking`.
Y = RNG.normal(size=(3 * BATCH, 1)).astype("float32")


class Block(keras.layers.Layer):
    """Knows only from Keras whether it trains, and counts its traces."""

    traces = 0

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(WIDTH, activation="tanh")
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x):
        Block.traces += 1
        return x + self.dropout(self.norm(self.dense(x)))


def model():
    inputs = keras.Input((4, WIDTH))
    x = keras.layers.Masking()(inputs)
    x = keras.layers.LSTM(
        WIDTH, dropout=0.3, return_sequences=True, name="recurrent"
    )(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    for number in range(2):
        x = Block(name=f"block_{number}")(x)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(x))


def weights_after(steps, **options):
    trainer = Trainer(
        **{
            "model": model,
            "loss": "mse",
            "data": lambda split: (X, Y),
            "batch_size": BATCH,
            "strategy": "default",
            "seed": 3,
            "learning_rate": 0.1,
            **options,
        }
    )
    trainer.train(steps)
    return trainer.model.get_weights()


def check_the_result_is_the_same(**options):
    expected = weights_after(3, **options)
    Block.traces = 0
    found = weights_after(
        3, recompute=["block_*", "recurrent", "head"], **options
    )
    # Each block, once to build it and twice in a step.
    assert Block.traces >= 2 * 3
    # A bfloat16 number has 8 bits.
    tolerance = 1e-2 if "precision" in options else 1e-6
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_the_result_is_the_same():
    check_the_result_is_the_same()


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": True},
        {"precision": "mixed_bfloat16"},
        {"accumulation_steps": 2},
        {"ema_momentum": 0.9},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_other_options(options):
    check_the_result_is_the_same(**options)


@pytest.mark.long
def test_on_two_replicas():
    """In a process of its own, as logical devices cannot be changed later."""
    code = (
        "import tensorflow as tf\n"
        "one = tf.config.LogicalDeviceConfiguration()\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [one, one])\n"
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_recompute import check_the_result_is_the_same as check\n"
        "check(strategy='mirrored')\n"
        "check(strategy='central_storage')\n"
    )
    here = str(pathlib.Path(__file__).parent)
    subprocess.run([sys.executable, "-c", code, here], cwd=ROOT, check=True)


def peak_of_a_deep_net(*recompute):
    """Peak memory of a process that trains it, in bytes."""
    code = (
        "import resource, sys, keras, numpy as np\n"
        "from trainer import Trainer\n"
        "def block(number):\n"
        "    dense = lambda: keras.layers.Dense(512, activation='tanh')\n"
        "    layers = [dense() for _ in range(8)]\n"
        "    return keras.Sequential(layers, name=f'block_{number}')\n"
        "def model():\n"
        "    first = keras.Input((512,))\n"
        "    return keras.Sequential([first, *map(block, range(8))])\n"
        "x = np.zeros((4096, 512), 'float32')\n"
        "trainer = Trainer(model=model, loss='mse', batch_size=4096,\n"
        "    data=lambda split: (x, x), strategy='default',\n"
        "    recompute=sys.argv[1:])\n"
        "trainer.train(2)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *recompute],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    return int(done.stdout.split()[-1])


@pytest.mark.long
def test_it_saves_memory(plain_starts):
    # 64 activations of 8 MiB, of which one block's 8 are needed at a time. The
    # allocator gives back less than that: 270 to 400 MB were measured.
    assert peak_of_a_deep_net() - peak_of_a_deep_net("block_*") > 200e6


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x))
        return x


class Measures(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.mean = keras.metrics.Mean(name="mine")

    def call(self, x):
        self.mean.update_state(keras.ops.mean(x))
        return x


def within(layer, name="outer"):
    """A model around a layer, and one around that."""
    inner = keras.Sequential([layer, keras.layers.Dense(1)], name=name)
    return keras.Sequential(
        [keras.Input((4, WIDTH)), inner, keras.layers.Flatten()]
    )


@pytest.mark.parametrize(
    ("layer", "pattern", "message"),
    [
        (Adds(name="adds"), "outer", "because 'adds' calls add_loss"),
        (Measures(name="m"), "out*", "because 'm' updates the metric 'mine'"),
        (
            keras.layers.Masking(),
            "outer",
            "because a mask is computed in its call",
        ),
        (Adds(), "outter", "named 'outter'. Did you mean 'outer'"),
    ],
    ids=["loss", "metric", "mask", "name"],
)
def test_what_cannot_be_computed_twice_is_refused(layer, pattern, message):
    with pytest.raises(UserError, match=message):
        weights_after(1, model=lambda: within(layer), recompute=[pattern])
