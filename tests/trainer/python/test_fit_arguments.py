"""Arguments of `fit`, `evaluate` and `predict` mean what they do in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer, UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def dataset(batch=16):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


def net():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, activation="softmax")]
    )


def make(**options):
    return Trainer(
        net(),
        loss="sparse_categorical_crossentropy",
        optimizer=keras.optimizers.SGD(0.1),
        strategy="default",
        batch_size=16,
        **options,
    )


@pytest.fixture(scope="module")
def shared():
    """One that is only measured, so that its steps are traced once."""
    return make()


def test_steps_beyond_the_data_are_not_measured_twice(shared):
    measured = shared.evaluate(X, Y)
    assert shared.evaluate(X, Y, steps=3) == measured
    assert shared.evaluate(dataset(), steps=5) == measured
    # Of unknown length: counted, and no further than is asked for.
    unknown = dataset().filter(lambda x, y: True)
    assert shared.evaluate(unknown, steps=5) == measured
    outputs = shared.predict(X)
    np.testing.assert_array_equal(shared.predict(X, steps=5), outputs)
    np.testing.assert_array_equal(shared.predict(unknown, steps=5), outputs)
    assert len(shared.predict(dataset().repeat(), steps=3)) == 36


def test_class_weights_and_refused_data_are_those_of_one_call():
    trainer = make(data={"train": (X, Y), "eval": (X, Y)})
    measured = trainer.evaluate()
    with pytest.raises(UserError, match="the model takes"):
        trainer.fit(X[:, :3], Y, batch_size=5, verbose=0)
    # The Trainer's own data, and what was traced for it, are still there.
    assert trainer.batch_size == 16
    assert trainer.evaluate() == measured
    trainer.fit(class_weight={0: 5.0}, verbose=0)
    assert trainer._recipe.class_weight is None
    # A whole pass in one batch: the loss of `train` is that of `evaluate`.
    trainer.fit(X, Y, batch_size=20, class_weight={0: 5.0}, verbose=0)
    before = trainer.evaluate(X, Y)["loss"]
    values = trainer.train(trainer.step + 1, verbose=0)
    assert values["loss"] == pytest.approx(before)


class Called(keras.callbacks.Callback):
    """Fails as soon as anything is trained."""

    def on_train_begin(self, logs=None):
        raise AssertionError("training has begun")


def test_endless_data_to_validate_is_refused_before_training():
    endless = dataset().repeat()
    trainer = make()
    with pytest.raises(UserError, match="endless.*set validation_steps"):
        trainer.fit(X, Y, validation_data=endless, callbacks=Called())
    trainer = make(data={"train": (X, Y), "eval": endless})
    with pytest.raises(UserError, match="endless.*set eval_steps"):
        trainer.train_and_evaluate(2, callbacks=Called())
    with pytest.raises(UserError, match="endless.*set steps"):
        trainer.evaluate()


class Validated(keras.callbacks.Callback):
    """Notes the epochs that were evaluated."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" in logs:
            self.epochs.append(epoch)


def test_every_nth_epoch_is_evaluated_by_its_number():
    noted = Validated()
    make().fit(
        X,
        Y,
        epochs=5,
        initial_epoch=1,
        validation_data=(X, Y),
        validation_freq=2,
        callbacks=noted,
        verbose=0,
    )
    # Those of keras.Model.fit: where (epoch + 1) % 2 == 0.
    assert noted.epochs == [1, 3]


class StopsWithin(keras.callbacks.Callback):
    """Ends training after the first batches."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_an_epoch_that_is_stopped_within_is_one_of_the_history():
    trainer = make()
    x, y = np.tile(X, (6, 1)), np.tile(Y, 6)
    call = {"batch_size": 1, "epochs": 3, "validation_data": (X, Y)}
    call |= {"callbacks": StopsWithin(), "verbose": 0}
    stopped = trainer.fit(x, y, **call)
    assert 0 < trainer.step < 120
    assert stopped.epoch == [0]
    assert stopped.history.keys() == {"loss", "val_loss"}
    # Its first epoch is not one that is evaluated.
    stopped = trainer.fit(x, y, **call, validation_freq=2)
    assert stopped.history.keys() == {"loss"}


def test_a_dict_with_a_split_is_one_of_splits(shared):
    measured = shared.evaluate(X, Y)
    trainer = make(data={"test": (X, Y)})
    assert trainer.evaluate(split="test") == measured
    splits = {"train": (X, Y), "eval": (X, Y)}
    assert shared.evaluate(data=splits) == measured
    with pytest.raises(UserError, match="data has no split 'test'. Valid"):
        shared.evaluate(data=splits, split="test")
    with pytest.raises(UserError, match="data has no split 'tests'"):
        shared.evaluate(data={"test": (X, Y)}, split="tests")
    # Any other data is that of the split that is asked for.
    assert shared.evaluate(data=(X, Y), split="test") == measured
