"""`Trainer.fit` against `keras.Model.fit`, and what goes with it."""

import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer import Trainer, UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
WEIGHTS = RNG.uniform(0.5, 2.0, size=50).astype("float32")


def dataset(batch=16):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return X[16 * number :][:16], Y[16 * number :][:16]


class Numbers(keras.callbacks.Callback):
    """Notes the numbers of epochs and what they log."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("begin", epoch))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("end", epoch, sorted(logs)))


def compiled(weighted=False):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    name = "weighted_metrics" if weighted else "metrics"
    model.compile(
        keras.optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        **{name: ["accuracy"]},
    )
    return model


# Three batches of 16 and one of 2, so that means must be weighed.
CALLS = {
    "validation_split": {
        "epochs": 3,
        "validation_split": 0.3,
        "validation_freq": 2,
    },
    "sample_weight": {
        "epochs": 2,
        "sample_weight": WEIGHTS,
        "validation_data": (X[:20], Y[:20], WEIGHTS[:20]),
    },
    "class_weight": {"epochs": 2, "class_weight": {0: 3.0, 1: 0.5}},
    "some epochs": {
        "epochs": 4,
        "initial_epoch": 2,
        "steps_per_epoch": 2,
        "batch_size": 10,
    },
    "dataset": {
        "x": dataset(),
        "y": None,
        "epochs": 2,
        "validation_data": dataset(8),
        "validation_steps": 2,
    },
    "py_dataset": {"x": Pairs(workers=1), "y": None, "epochs": 2},
    "lists": {"x": X.tolist(), "y": Y.tolist(), "epochs": 1},
}
SHORT = ("validation_split",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.long] * (one not in SHORT))
        for one in CALLS
    ],
)
def test_fit_is_that_of_keras(name):
    call = {"x": X, "y": Y, "batch_size": 16, "shuffle": False, "verbose": 0}
    call |= CALLS[name]
    if isinstance(call["x"], tf.data.Dataset | keras.utils.PyDataset):
        del call["batch_size"]
    theirs, ours = (compiled(name == "sample_weight") for _ in range(2))
    wanted = dict(call)
    if name == "lists":  # Which Keras does not take.
        wanted |= {"x": X, "y": Y}
    noted = Numbers(), Numbers()
    expected = theirs.fit(**wanted, callbacks=[noted[0]])
    found = Trainer(ours, strategy="default").fit(**call, callbacks=[noted[1]])
    assert found.history.keys() == expected.history.keys()
    for key, values in expected.history.items():
        # Keras weighs metrics by class weights only if they are weighted.
        np.testing.assert_allclose(found.history[key], values, rtol=2e-5)
    assert noted[1].seen == noted[0].seen
    assert found.epoch == expected.epoch
    for mine, other in zip(
        ours.get_weights(), theirs.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_fit_has_the_arguments_of_keras():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(Trainer.fit) == [*names(keras.Model.fit), "steps_per_loop"]


def test_fit_then_train_then_look_at_it(tmp_path, capsys):
    model = compiled()
    trainer = Trainer(model, strategy="default", batch_size=16)
    first = trainer.fit(X, Y, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["epoch", "1/2"],
        ["epoch", "2/2"],
    ]
    # Three epochs in all: one more.
    values = trainer.train("3 epochs", verbose=0)
    assert trainer.step == 12
    assert capsys.readouterr().out == ""
    assert len(first.history["loss"]) == 2
    assert len(trainer.history.history["loss"]) == 3
    assert isinstance(trainer.history, keras.callbacks.History)
    # The given model is the trained one.
    outputs = model.predict(X, verbose=0)
    np.testing.assert_array_equal(trainer.predict(X, batch_size=7), outputs)
    batched = trainer.predict(dataset(), steps=2)
    np.testing.assert_allclose(batched, outputs[:32], rtol=1e-6)
    accuracy = np.mean(outputs.argmax(1) == Y)
    for measured in (
        trainer.evaluate(X, Y),
        trainer.evaluate(data=dataset(8)),
        trainer.evaluate(X, Y, batch_size=9),
    ):
        assert measured["accuracy"] == pytest.approx(accuracy)
    assert trainer.evaluate(X, Y, steps=1) != trainer.evaluate(X, Y)
    trainer.save(tmp_path / "m.keras")
    saved = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(saved.predict(X, verbose=0), outputs)
    with pytest.raises(UserError, match="exists"):
        trainer.save(tmp_path / "m.keras", overwrite=False)
    said = []
    trainer.summary(print_fn=lambda line, **_: said.append(line))
    assert said[0].startswith("strategy default on cpu:0 | 58 parameters")
    assert values["loss"] > 0


@pytest.mark.long
def test_history_as_a_frame():
    pandas = pytest.importorskip("pandas")
    trainer = Trainer(compiled(), strategy="default", batch_size=16)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    labels = pandas.Series(Y, name="label")
    history = trainer.fit(
        frame,
        labels,
        epochs=2,
        validation_split=0.2,
        validation_freq=2,
        verbose=0,
    )
    table = pickle.loads(pickle.dumps(history)).frame()
    assert list(table.index) == [0, 1]
    assert list(table["loss"]) == history.history["loss"]
    assert np.isnan(table["val_loss"][0])
    assert table["val_loss"][1] == history.history["val_loss"][0]


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    [
        tf.distribute.MirroredStrategy(["cpu:0"]),
        tf.distribute.OneDeviceStrategy("cpu:0"),
        tf.distribute.get_strategy(),
        "central_storage",
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_model_is_trained_under_any_strategy(strategy):
    theirs, ours = compiled(), compiled()
    expected = theirs.fit(X, Y, 16, epochs=2, shuffle=False, verbose=0)
    trainer = Trainer(ours, strategy=strategy)
    found = trainer.fit(X, Y, 16, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=2e-5
    )
    # Under a strategy a copy was trained, and has given its weights back.
    for mine, other in zip(
        ours.get_weights(), theirs.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    outputs = theirs.predict(X, verbose=0)
    np.testing.assert_allclose(trainer.predict(X), outputs, rtol=1e-4)


def test_strategies_that_the_trainer_must_start_are_refused():
    class MultiWorkerMirroredStrategy(tf.distribute.MirroredStrategy):
        pass

    given = MultiWorkerMirroredStrategy(["cpu:0"])
    with pytest.raises(UserError, match="its name: .*multi_worker_mirr"):
        Trainer(compiled(), strategy=given).build()


@pytest.mark.long
def test_an_optimizer_goes_on_with_its_state():
    theirs, ours = compiled(), compiled()
    for model in (theirs, ours):
        model.fit(X, Y, 16, shuffle=False, verbose=0)
    theirs.fit(X, Y, 16, shuffle=False, verbose=0)
    trainer = Trainer(ours, strategy="default")
    trainer.fit(X, Y, 16, shuffle=False, verbose=0)
    for mine, other in zip(
        ours.get_weights(), theirs.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert int(trainer.optimizer.iterations) == 8
    assert trainer.step == 4


def test_other_data_begins_its_own_epochs():
    trainer = Trainer(compiled(), strategy="default", batch_size=16)
    trainer.fit(X, Y, epochs=1, verbose=0)
    noted = Numbers()
    trainer.fit(X[:20], Y[:20], epochs=3, callbacks=noted, verbose=0)
    assert trainer.step == 4 + 3 * 2
    ends = [one[1] for one in noted.seen if one[0] == "end"]
    assert ends == [0, 1, 2]


def test_each_call_of_fit_shuffles_anew():
    seen = []

    class Order(Trainer):
        def forward(self, x, *, training):
            if training:
                seen.append(x.numpy().copy())
            return super().forward(x, training=training)

    trainer = Order(
        compiled(), strategy="default", batch_size=16, run_eagerly=True
    )
    trainer.fit(X, Y, verbose=0)
    first = list(seen)
    seen.clear()
    trainer.fit(X, Y, verbose=0)
    assert not np.array_equal(np.concatenate(first), np.concatenate(seen))
