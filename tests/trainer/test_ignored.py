"""What is given is honoured, or refused in a sentence before a step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer, UserError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = RNG.normal(size=(40, 1)).astype("float32")


def layers():
    return [
        keras.Input((4,)),
        keras.layers.Dense(3, name="first"),
        keras.layers.Dense(1, name="second"),
    ]


def make(kind=Trainer, **options):
    return kind(
        **{
            "model": lambda: keras.Sequential(layers()),
            "loss": "mse",
            "optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            "data": lambda split: (X, Y),
            "batch_size": 16,
            "strategy": "default",
            **options,
        }
    )


def model_with(name):
    """A model that has a method of its own, which calls Keras'."""

    def method(self, *arguments, **options):
        return getattr(keras.Sequential, name)(self, *arguments, **options)

    kind = type("Mine", (keras.Sequential,), {name: method})
    return lambda: kind(layers())


@pytest.mark.parametrize(
    "name",
    ["train_step", "test_step", "compute_loss", "compute_metrics"],
)
def test_steps_of_a_keras_model_are_refused(name):
    with pytest.raises(
        UserError, match=rf"Mine\.{name} is overridden.*Trainer"
    ):
        make(model=model_with(name)).train(1)


class Own(Trainer):
    def train_step(self, batch):
        return {}


def test_a_step_of_ones_own_may_call_the_models():
    make(Own, model=model_with("compute_loss")).train(1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"loss_scale_factor": 8.0}, "loss_scale_factor divides"),
    ],
)
def test_options_of_optimizers(option, message):
    with pytest.raises(UserError, match=message):
        make(optimizer=lambda: keras.optimizers.SGD(0.1, **option)).train(1)


@pytest.fixture
def global_half():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def tiny_gradients(**options):
    """Gradients of about 1e-9, which float16 cannot hold."""
    trainer = make(
        **{
            "loss": lambda y, y_pred: 1e-9 * (y_pred - y)[:, 0],
            "optimizer": lambda: keras.optimizers.SGD(1e6),
            **options,
        }
    )
    before = trainer.model.get_weights()
    trainer.train(1)
    return np.abs(trainer.model.get_weights()[0] - before[0]).max()


def test_a_global_policy_of_float16_has_a_loss_scale(global_half):
    assert tiny_gradients() > 0
    with pytest.raises(
        UserError, match="float16, whose loss scale cannot reach"
    ):
        make(Own).train(1)


@pytest.mark.parametrize("scaled", [True, False])
def test_compile_says_whether_float16_has_a_loss_scale(scaled):
    def model():
        made = keras.Sequential(layers())
        made.compile(keras.optimizers.SGD(1e6), auto_scale_loss=scaled)
        return made

    half = {"precision": "mixed_float16", "optimizer": None}
    assert (tiny_gradients(model=model, **half) > 0) == scaled


def test_a_layer_of_float16_has_a_loss_scale():
    def model():
        given, first, second = layers()
        first = keras.layers.Dense(3, dtype="mixed_float16")
        return keras.Sequential([given, first, second])

    assert tiny_gradients(model=model) > 0


def test_a_layer_that_is_frozen_between_two_calls_stays_as_it_is():
    trainer = make()
    trainer.train(2)
    reference = keras.Sequential(layers())
    reference.set_weights(trainer.model.get_weights())
    first, second = trainer.model.layers
    first.trainable = False
    frozen, moving = first.get_weights(), second.get_weights()
    trainer.train(4)
    np.testing.assert_array_equal(first.get_weights()[0], frozen[0])
    assert (second.get_weights()[0] != moving[0]).any()
    first.trainable = True
    trainer.train(6)
    assert (first.get_weights()[0] != frozen[0]).any()


def test_a_layer_cannot_be_thawed():
    def model():
        made = keras.Sequential(layers())
        made.layers[0].trainable = False
        return made

    trainer = make(model=model)
    trainer.train(1)
    trainer.model.layers[0].trainable = True
    with pytest.raises(UserError, match="first/kernel was not trainable"):
        trainer.train(2)


def test_a_callback_cannot_freeze_a_layer_while_steps_train_it():
    class Freeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[0].trainable = False

    trainer = make()
    with pytest.raises(UserError, match="changed which layers are trainable"):
        trainer.train(9, callbacks=[Freeze()])
    assert trainer.step == 3
    # Between two calls it may be done.
    trainer.train(9)


@pytest.mark.parametrize("size", [7, 32])
def test_batches_of_another_size(size):
    def data(split):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)

    trainer = make(data=data)
    with pytest.raises(
        UserError, match=f"data yields batches of {size} .* batch_size = 16"
    ):
        trainer.batches("train")
    # In an evaluation they do not change a value.
    expected = trainer.evaluate(X, Y)
    assert trainer.evaluate() == pytest.approx(expected, rel=1e-6)


def test_one_short_batch_is_an_epoch():
    def data(split):
        return tf.data.Dataset.from_tensor_slices((X[:9], Y[:9])).batch(16)

    assert make(data=data).batches("train").steps_per_epoch == 1


def test_data_without_a_split_trains_only():
    trainer = make(data=lambda: (X, Y))
    trainer.train(1)
    with pytest.raises(UserError, match="takes no split"):
        trainer.evaluate()
    with pytest.raises(UserError, match="takes no split"):
        make(data=lambda: (X, Y)).train_and_evaluate(1)
