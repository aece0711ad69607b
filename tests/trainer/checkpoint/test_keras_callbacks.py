"""Keras' own callbacks go on where they were: against `fit` and itself."""

import collections
import copy
import datetime
import decimal
import fractions
import functools
import os
import pathlib
import pickle
import random

import keras
import numpy as np
import pytest

from tests.helpers import compare, make_trainer, saved_steps
from tests.sets import one_in
from trainer import Trainer, UserError
from trainer.checkpoint.keras_callbacks import Attributes
from trainer.runtime import schema
from trainer_plugins import Checkpoint, JsonLines

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


class Tracker:
    def __init__(self):
        self.values = []


class Anneals(keras.callbacks.Callback):
    """Draws, counts and keeps in all kinds of attributes."""

    def __init__(self, rate=0.05):
        super().__init__()
        self.rate = rate
        self.generator = np.random.default_rng(3)
        self.old_generator = np.random.RandomState(4)
        self.random = random.Random(5)
        self.newest = collections.deque(maxlen=3)
        self.seen = set()
        self.variable = keras.Variable(0.0)
        self.average = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1)]
        )
        self.by_pair = {}
        self.found = collections.defaultdict(list)
        self.tracker = Tracker()
        self.date = datetime.date(2026, 11, 25)
        self.unchanged = lambda: 0
        self.number = np.float32(1)
        self.best_weights = None

    def on_train_begin(self, logs=None):
        self.begun = 0
        self.average.set_weights(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.begun += 1
        self.rate *= 0.8 + 0.1 * self.generator.random()
        self.rate *= 0.8 + 0.1 * self.random.random()
        self.rate *= 0.8 + 0.1 * self.old_generator.rand()
        self.number *= np.float32(0.9)
        self.newest.append(self.rate)
        self.seen.add((epoch, "épôque"))
        self.variable.assign_add(1.0)
        self.by_pair[epoch, "rate"] = float("nan")
        self.found["rate"].append(self.rate)
        self.tracker.values.append((epoch, self.rate))
        self.date += datetime.timedelta(days=1)
        # Made only now, as in Keras' own callbacks.
        self.lazy = [np.arange(epoch + 1), b"abc"]
        if self.best_weights is None:
            self.best_weights = self.model.get_weights()
        for own, its in zip(
            self.average.weights, self.model.weights, strict=True
        ):
            own.assign(0.5 * own + 0.5 * its)
        self.model.optimizer.learning_rate = (
            float(np.mean(self.newest))
            * float(self.number)
            * (1 + 0.1 * float(self.variable) / len(self.seen))
            * (1 + 0.1 * len(self.lazy[0]) / len(self.by_pair))
            * (1 + 0.1 * len(self.tracker.values) / self.begun)
            * (1 + 0.01 * float(self.average.weights[1][0]))
            * (1 + 0.01 * (self.date - datetime.date(2026, 11, 25)).days)
        )


def anneal(model_dir, epochs, make=Anneals):
    # The same names of layers in each run, as in processes of their own.
    keras.utils.clear_session()
    callback = make()
    trainer().train(
        f"{epochs} epochs",
        model_dir=str(model_dir),
        callbacks=[callback, JsonLines(), Checkpoint(every=4)],
        verbose=0,
    )
    return callback


def test_whatever_a_callback_has_changed_goes_on(tmp_path):
    whole = anneal(tmp_path / "whole", 5)
    for epochs in (1, 3, 5):
        cut = anneal(tmp_path / "cut", epochs)
    compare(tmp_path / "cut", tmp_path / "whole")
    for name in ("rate", "newest", "seen", "found", "date", "begun"):
        assert getattr(cut, name) == getattr(whole, name), name
        assert type(getattr(cut, name)) is type(getattr(whole, name))
    assert whole.newest.maxlen == cut.newest.maxlen == 3
    assert cut.found.default_factory is list
    # What no run has changed is the constructor's.
    trainer().train(
        4, model_dir=str(tmp_path / "few"), callbacks=[Few(), Checkpoint()]
    )
    again = Few(rate=7.0)
    trainer().train(
        8, model_dir=str(tmp_path / "few"), callbacks=[again, Checkpoint()]
    )
    assert (again.rate, again.count) == (7.0, 2)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (
            lambda self: setattr(self, "schedule", len),
            "an object of builtin_function",
        ),
        (lambda self: setattr(self, "kept", [object()]), "an object of object"),
        (
            lambda self: setattr(self, "tracker", Trainer),
            "an object of Trainer",
        ),
        (
            lambda self: setattr(self.tracker, "x", iter("ab")),
            "an object of str_.*iterator",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path, change, kind):
    class Changes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.schedule, self.kept, self.tracker = abs, [], Tracker()

        def on_epoch_end(self, epoch, logs=None):
            change(self)

    Changes.__module__ = __name__
    # Where nothing is saved, nothing is refused.
    made, callback = trainer(), Changes()
    for steps in (8, 12):
        made.train(steps, callbacks=[callback], verbose=0)
    with pytest.raises(
        UserError, match=rf"Changes\.(schedule|kept|tracker) has .*\({kind}"
    ):
        anneal(tmp_path, 2, Changes)
    assert saved_steps(tmp_path) == []


class Few(keras.callbacks.Callback):
    def __init__(self, rate=0.5):
        super().__init__()
        self.rate, self.count = rate, 0

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1


class Counts(keras.callbacks.Callback):
    count, seen = 0, None

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        self.seen = [*(self.seen or []), self.count]


def test_going_back_undoes_what_had_not_changed_before():
    callback = Counts()
    attributes = Attributes(callback, set)
    attributes.first()
    attributes.begin()
    before = attributes.state()
    assert before == {}
    callback.on_train_batch_end(0)
    then = copy.deepcopy(attributes.state())
    callback.on_train_batch_end(1)
    attributes.load(then)
    assert (callback.count, callback.seen) == (1, [1])
    attributes.load(before)
    assert (callback.count, callback.seen) == (0, None)


def load(callback, values):
    """Has a callback take what a checkpoint holds of it."""
    attributes = Attributes(callback, set)
    state = {name: pickle.dumps(value) for name, value in values.items()}
    attributes.check(state)
    attributes.load(state)


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
    load(callback, evil)
    assert callback.wait == 7
    assert callback.monitor_op is max
    assert callable(callback.on_epoch_end)
    assert callable(callback.set_model)
    assert not hasattr(callback, "no_such_attribute")


@pytest.mark.parametrize("name", ["best", "number"])
@pytest.mark.parametrize(
    "value", [os.system, Tracker(), functools.partial(print), keras.Model]
)
def test_a_checkpoint_names_nothing_that_runs(name, value):
    attributes = Attributes(Anneals(), set)
    with pytest.raises(schema.Misfit, match=f"Anneals.{name}: KeyError"):
        attributes.check({name: pickle.dumps(value)})
    with pytest.raises(schema.Misfit, match=f"Anneals.{name}: "):
        attributes.check({name: b"no pickle"})


@pytest.mark.parametrize(
    "value",
    [
        *(3, 0.1, "text", b"bytes", None, [(1, {"a": {2}})], {1: frozenset()}),
        *(range(3), slice(1, 2), 2j, collections.Counter("aab")),
        *(decimal.Decimal("1.5"), fractions.Fraction(1, 3)),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        *(pathlib.Path("a"), np.float32(0.1), np.array([["a"]])),
        *(np.zeros((2, 3))[:, ::2], np.array(["2026"], "datetime64[s]")),
        *(np.array([0.5], "bfloat16"), np.array([1, "b"], object)),
    ],
    ids=repr,
)
def test_a_value_goes_on_as_it_was(value):
    callback, other = Few(), Few()
    attributes, its = Attributes(callback, set), Attributes(other, set)
    for one in (attributes, its):
        one.first()
        one.begin()
    callback.rate = value
    state = attributes.state()
    its.check(state)
    its.load(state)
    assert type(other.rate) is type(value)
    np.testing.assert_array_equal(other.rate, value)
    if isinstance(value, np.ndarray):
        assert other.rate.dtype == value.dtype
    # Equal values are equal bytes, in whatever way they have come to be.
    assert its.state() == state


def test_an_object_goes_on_in_another_place_and_a_new_one_is_refused():
    class Moves(Few):
        def __init__(self):
            super().__init__()
            self.tracker = Tracker()

    Moves.__module__ = __name__
    callback, other = Moves(), Moves()
    attributes, its = Attributes(callback, set), Attributes(other, set)
    for one in (attributes, its):
        one.first()
        one.begin()
    assert attributes.state() == {}
    callback.tracker.values.append(7)
    callback.tracker = [callback.tracker]
    tracker = other.tracker
    its.load(attributes.state())
    assert other.tracker == [tracker]
    assert tracker.values == [7]
    its.load({})
    assert other.tracker is tracker
    assert tracker.values == []
    callback.tracker = Tracker()
    with pytest.raises(UserError, match=r"Moves.tracker .* of Tracker"):
        attributes.state()


def test_a_checkpoint_chooses_no_file(tmp_path):
    callback = keras.callbacks.BackupAndRestore(str(tmp_path / "mine"))
    mine = callback._training_metadata_path
    callback._weights_path = None
    stolen = {
        "_training_metadata_path": "victim",
        "_weights_path": "victim",
        "_current_epoch": 3,
    }
    load(callback, stolen)
    assert callback._training_metadata_path == mine
    assert callback._weights_path is None
    assert callback._current_epoch == 3
    assert "_training_metadata_path" not in Attributes(callback, set).state()


class Phases(keras.callbacks.Callback):
    phase = "frozen"

    def on_epoch_end(self, epoch, logs=None):
        self.phase = "thawed"


def test_a_text_of_ones_own_callback_is_kept():
    callback = Phases()
    callback.on_epoch_end(0)
    other = Phases()
    other.phase = "frozen"
    Attributes(other, set).load(Attributes(callback, set).state())
    assert other.phase == "thawed"
