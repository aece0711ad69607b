"""Keras' own callbacks go on where they were: against `fit` and itself."""

import keras
import numpy as np
import pytest

from tests.helpers import make_trainer
from tests.sets import one_in
from trainer.checkpoint import keras_callbacks
from trainer_plugins import Checkpoint

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


def trainer():
    return make_trainer(
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.05),
        data=lambda split: (X, Y),
        batch_size=16,
    )


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.5, patience=2, min_delta=10.0, cooldown=1
        ),
        keras.callbacks.EarlyStopping(
            "loss", patience=100, restore_best_weights=True
        ),
    ]


def run(steps, model_dir=None):
    made, given = trainer(), callbacks()
    extra = [Checkpoint(every=4)] if model_dir else []
    made.train(
        steps,
        model_dir=model_dir,
        callbacks=[*given, *extra],
        steps_per_loop=4,
    )
    return made, given


@pytest.mark.parametrize("cut", one_in(3, [4, 12, 20, 28]))
def test_plateau_and_early_stopping_go_on(tmp_path, cut):
    whole, (plateau, early) = run(48)
    run(cut, str(tmp_path))
    resumed, (plateau_2, early_2) = run(48, str(tmp_path))
    assert float(resumed.optimizer.learning_rate) < 0.05
    np.testing.assert_array_equal(
        resumed.optimizer.learning_rate, whole.optimizer.learning_rate
    )
    for one, other in zip(
        whole.model.get_weights(), resumed.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    for name in ("wait", "best", "cooldown_counter"):
        assert getattr(plateau, name) == getattr(plateau_2, name)
    for name in ("wait", "best", "best_epoch"):
        assert getattr(early, name) == getattr(early_2, name)
    for one, other in zip(
        early.best_weights, early_2.best_weights, strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_replaces_no_function():
    callback = keras.callbacks.EarlyStopping("loss")
    callback.monitor_op = max
    evil = {
        "wait": 7,
        "monitor_op": "os.system",
        "set_model": "x",
        "on_epoch_end": "x",
        "no_such_attribute": 1,
    }
    keras_callbacks.load(callback, evil)
    assert callback.wait == 7
    assert callback.monitor_op is max
    assert callable(callback.on_epoch_end)
    assert callable(callback.set_model)
    assert not hasattr(callback, "no_such_attribute")


def test_a_checkpoint_chooses_no_file(tmp_path):
    callback = keras.callbacks.BackupAndRestore(str(tmp_path / "mine"))
    mine = callback._training_metadata_path
    callback._weights_path = None
    stolen = {
        "_training_metadata_path": "victim",
        "_weights_path": "victim",
        "_current_epoch": 3,
    }
    keras_callbacks.load(callback, stolen)
    assert callback._training_metadata_path == mine
    assert callback._weights_path is None
    assert callback._current_epoch == 3
    assert "_training_metadata_path" not in keras_callbacks.state_of(callback)


class Phases(keras.callbacks.Callback):
    phase = "frozen"

    def on_epoch_end(self, epoch, logs=None):
        self.phase = "thawed"


def test_a_text_of_ones_own_callback_is_kept():
    callback = Phases()
    callback.on_epoch_end(0)
    other = Phases()
    other.phase = "frozen"
    keras_callbacks.load(other, keras_callbacks.state_of(callback))
    assert other.phase == "thawed"
