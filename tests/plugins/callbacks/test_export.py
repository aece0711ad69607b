import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Callback, Trainer, UserError
from trainer.plugin_api import storage
from trainer_plugins import Checkpoint, Export


class NoConfig(keras.Model):
    """Cannot be written as .keras: its constructor takes a function."""

    def __init__(self, activation):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.activation = activation

    def call(self, x):
        return self.activation(self.dense(x))

    def get_config(self):
        raise NotImplementedError("NoConfig has no config")


class Tokens(keras.Model):
    """Takes integers, which it does not declare."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(7, 1)

    def call(self, x):
        return keras.ops.sum(self.embedding(x % 7), axis=1)


def served(path):
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]

    def call(x):
        (output,) = signature(**{name: tf.constant(x)}).values()
        return output.numpy()

    # The functions die with the object that was loaded.
    call.keep = loaded
    call.spec = signature.structured_input_signature[1][name]
    return call


def close(left, right):
    np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def make_trainer(model, data, **options):
    return Trainer(
        model=model,
        loss=keras.losses.MeanSquaredError(),
        optimizer=lambda: keras.optimizers.SGD(0.01),
        data=lambda split: data,
        strategy="default",
        batch_size=4,
        **options,
    )


def test_a_model_without_config_is_still_exported(tmp_path, caplog):
    x = np.ones((8, 3), "float32")
    trainer = make_trainer(lambda: NoConfig(keras.ops.tanh), (x, x[:, :2]))
    trainer.train(2, model_dir=str(tmp_path), callbacks=[Export()])
    assert os.listdir(tmp_path / "export") == ["saved_model"]
    assert "get_config" in caplog.text
    written = str(tmp_path / "export" / "saved_model")
    close(served(written)(x), trainer.model(x))


def test_with_the_trainer_and_averaged_weights(tmp_path):
    x = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    trainer = make_trainer(
        lambda: keras.Sequential([keras.layers.Dense(1)]),
        (x, x.sum(axis=1, keepdims=True)),
        ema_momentum=0.9,
    )
    trainer.train(20, model_dir=str(tmp_path), callbacks=[Export()])
    expected = trainer._built.single_device_model()(x)
    assert np.abs(expected - trainer.model(x)).max() > 1e-3
    close(served(str(tmp_path / "export" / "saved_model"))(x), expected)
    loaded = keras.models.load_model(tmp_path / "export" / "model.keras")
    close(loaded(x), expected)


def test_inputs_have_the_type_of_the_data(tmp_path):
    # Not exact in float32, which is what Keras assumes for such a model.
    x = np.array([[2**24 + 1, 2], [3, 4], [5, 6], [7, 8]], "int32")
    trainer = make_trainer(Tokens, (x, np.zeros((4, 1), "float32")))
    callback = Export(formats=["saved_model"])
    trainer.train(20, model_dir=str(tmp_path), callbacks=[callback])
    serve = served(str(tmp_path / "export" / "saved_model"))
    assert serve.spec.dtype == tf.int32
    assert serve.spec.shape.as_list() == [None, 2]
    close(serve(x[:3]), trainer.model(x[:3]))


def test_an_export_that_fails_costs_no_checkpoint(tmp_path):
    class Stop(Callback):
        def on_save(self, step, logs):
            self.run.stop("enough")

    x = np.ones((8, 3), "float32")
    trainer = make_trainer(
        lambda: keras.Sequential([keras.layers.Dense(1)]),
        (x, x.sum(axis=1, keepdims=True)),
    )
    (tmp_path / "export").write_text("in the way")
    callbacks = [Checkpoint(every=100), Export(), Stop()]
    with pytest.raises(UserError, match="--mode=export"):
        trainer.train(
            20,
            model_dir=str(tmp_path),
            callbacks=callbacks,
            steps_per_loop=5,
        )
    (path,) = storage.listing(str(tmp_path / "checkpoints"))
    assert storage.step_of(path) == trainer.step == 2
