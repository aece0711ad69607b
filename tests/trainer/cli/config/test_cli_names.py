import gin
import keras
import numpy as np
import pytest

from tests.trainer.cli.tiny import IMPORT
from trainer.cli.config import gin_private
from trainer.cli.config.keras_names import _MODULES


def test_every_public_class_is_known(configure):
    configure()
    for module, members in _MODULES.items():
        for name, member in vars(members).items():
            if isinstance(member, type) and member.__name__ == name:
                assert gin_private.wrapped(f"{module}.{name}") is member


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Adam", keras.optimizers.Adam),
        ("optimizers.Adam", keras.optimizers.Adam),
        ("losses.MeanSquaredError", keras.losses.MeanSquaredError),
        ("metrics.MeanSquaredError", keras.metrics.MeanSquaredError),
        ("keras.layers.Dense", keras.layers.Dense),
        ("keras.callbacks.TensorBoard", keras.callbacks.TensorBoard),
        ("keras.regularizers.L2", keras.regularizers.L2),
        ("GlorotUniform", keras.initializers.GlorotUniform),
    ],
)
def test_instances_keep_their_type(configure, name, expected):
    arguments = "keras.layers.Dense.units = 3\nx = @" + name + "()\n"
    configure(IMPORT + arguments + "tower.width = %x\n")
    assert type(gin.get_bindings("tower")["width"]) is expected


def test_schedules_nest(configure):
    configure(
        f"{IMPORT}tower.width = @Adam()\n"
        "Adam.learning_rate = @schedules.CosineDecay()\n"
        "CosineDecay.initial_learning_rate = 0.5\n"
        "CosineDecay.decay_steps = 10\n"
    )
    optimizer = gin.get_bindings("tower")["width"]
    assert float(optimizer.learning_rate) == pytest.approx(0.5)


def test_a_layer_made_by_gin_trains_and_is_serialized(configure):
    configure(
        "Trainer.loss = @keras.layers.Dense()\n"
        "keras.layers.Dense.units = 2\n"
        "keras.layers.Dense.activation = 'relu'\n"
    )
    layer = gin.get_bindings("Trainer")["loss"]
    model = keras.Sequential([keras.Input((3,)), layer])
    copy = keras.Sequential.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    expected = np.maximum(x @ layer.kernel.numpy() + layer.bias.numpy(), 0)
    np.testing.assert_allclose(model(x), expected, rtol=1e-5)
    np.testing.assert_allclose(copy(x), expected, rtol=1e-5)
