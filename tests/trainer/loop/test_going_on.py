"""What happens twice to a run that goes on, and must not count twice."""

import pickle

import keras
import numpy as np
import pytest

from tests.helpers import make_trainer, newest
from tests.sets import long
from trainer import Callback, StartAgain
from trainer_plugins import Checkpoint

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
EPOCH = 8  # Steps.


def make():
    return make_trainer(
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        data=lambda split: (X, Y),
    )


def train(folder, steps, *callbacks, **options):
    made = make()
    made.train(
        steps,
        model_dir=str(folder),
        callbacks=[*callbacks, Checkpoint(every=4)],
        **{"steps_per_loop": 4, **options},
    )
    return made


class At(Callback):
    """Does something when a step is done."""

    def __init__(self, step, act):
        super().__init__()
        self._step, self._act = step, act

    def on_train_batch_end(self, batch, logs=None):
        if self.run.step == self._step:
            self._act(self.run)


def leave_at(step):
    return At(step, lambda trainer: trainer.start_again("for a test"))


def stop_at(step):
    return At(step, lambda trainer: trainer.stop("that is enough"))


def decay():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


class Count(keras.callbacks.Callback):
    """Counts in Python and in a variable of the model."""

    def __init__(self):
        super().__init__()
        self.begun = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.begun += 1
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.25)


@pytest.mark.parametrize("left_at", [4, long(8), 12, long(16)])
def test_what_an_epochs_begin_does_counts_once(tmp_path, left_at):
    whole_count = Count()
    whole = train(tmp_path / "whole", 24, decay(), whole_count)
    with pytest.raises(StartAgain):
        train(tmp_path / "cut", 24, decay(), Count(), leave_at(left_at))
    count = Count()
    cut = train(tmp_path / "cut", 24, decay(), count)
    assert whole._built.learning_rates() == {"learning_rate": 0.0125}
    assert cut._built.learning_rates() == whole._built.learning_rates()
    assert count.begun == whole_count.begun == 3
    for one, other in zip(
        whole.model.get_weights(), cut.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_what_the_beginning_of_training_sets_is_not_set_again(tmp_path):
    class Warm(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.learning_rate.assign(0.05)

    train(tmp_path, 8, Warm(), decay())
    made = train(tmp_path, 16, Warm(), decay())
    assert made._built.learning_rates() == {"learning_rate": 0.0125}


def test_a_snapshot_does_not_change_while_it_is_written(tmp_path):
    class Watch(Callback):
        seen = None

        def on_save(self, step, logs):
            if step == EPOCH:
                self.seen = self.run.state.capture()
                self.then = repr(self.seen.host["callbacks"]), dict(logs)

    watch, history = Watch(), keras.callbacks.History()
    train(tmp_path, 24, history, watch, log_every=4)
    assert history.epoch == [0, 1, 2]
    epochs = watch.seen.arrays["callbacks/History/epoch"].tobytes()
    assert pickle.loads(epochs) == [0]
    assert repr(watch.seen.host["callbacks"]) == watch.then[0]
    assert watch.seen.host["logs"] == watch.then[1]


def best_weights():
    """Worse from the second epoch on: the first epoch's weights are best."""
    return keras.callbacks.EarlyStopping(
        "loss", patience=1, min_delta=1e9, restore_best_weights=True
    )


def test_the_last_checkpoint_holds_what_the_end_made_of_the_model(tmp_path):
    made = train(tmp_path, 80, best_weights())
    assert made.step == 2 * EPOCH
    found = newest(tmp_path)
    kernel = made.model.layers[-1].kernel.numpy()
    np.testing.assert_array_equal(found.arrays["model/0000"], kernel)
    assert found.host["times"]["accounts"]["saved_at"] is None
    # Started again it changes nothing.
    again = train(tmp_path, 80, best_weights())
    np.testing.assert_array_equal(again.model.layers[-1].kernel.numpy(), kernel)
    for name, array in newest(tmp_path).arrays.items():
        np.testing.assert_array_equal(array, found.arrays[name])


def test_a_run_that_was_stopped_goes_on_only_if_something_else_is_asked(
    tmp_path, caplog
):
    assert train(tmp_path, 40, stop_at(12)).step == 12
    caplog.clear()
    again = train(tmp_path, 40)
    assert (again.step, again.stop_reason) == (12, "that is enough")
    assert (
        "stopped at step 12 (that is enough) and stays stopped" in caplog.text
    )
    assert train(tmp_path, 48).step == 48


def test_a_run_that_is_asked_to_leave_at_its_start_takes_no_step(tmp_path):
    class Leave(Callback):
        def on_train_begin(self, logs=None):
            self.run.start_again("for a test")

    with pytest.raises(StartAgain, match="left at step 0"):
        train(tmp_path, 16, Leave(), decay())
    whole = train(tmp_path / "whole", 16, decay())
    made = train(tmp_path, 16, decay())
    assert made._built.learning_rates() == whole._built.learning_rates()
