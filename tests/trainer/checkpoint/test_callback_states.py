"""What a checkpoint says of callbacks is checked before it is believed."""

import json
import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import linear, lines, make_trainer, read_lines
from tests.json_values import JSON
from trainer import Callback, UserError
from trainer.checkpoint import keras_callbacks, storage
from trainer.loop.callback_list import CallbackList
from trainer.runtime.schema import Misfit
from trainer_plugins import Checkpoint, EarlyStopping, JsonLines

CODE = "import os; os.system('touch harm')\n"


def callbacks():
    return [
        EarlyStopping(monitor="loss", patience=100),
        keras.callbacks.EarlyStopping(
            "loss", patience=100, restore_best_weights=True
        ),
        JsonLines(),
        Checkpoint(every=2),
    ]


def train(model_dir, steps, *more):
    trainer = make_trainer(linear)
    trainer.train(
        steps,
        model_dir=str(model_dir),
        callbacks=[
            keras.callbacks.CSVLogger(str(model_dir) + ".csv", append=True),
            *more,
            *callbacks(),
        ],
        log_every=2,
    )
    return trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of an epoch, and what its newest checkpoint holds."""
    model_dir = tmp_path_factory.mktemp("saved") / "run"
    train(model_dir, 8)
    found = storage.load_newest(str(model_dir / "checkpoints"))
    return model_dir, found


def crafted(saved, tmp_path, change):
    """The run with a tenth step: right checksums, other content."""
    _, snapshot = saved
    directory = tmp_path / "run" / "checkpoints"
    host = json.loads(json.dumps(snapshot.host))
    arrays = dict(snapshot.arrays)
    storage.save(str(directory), snapshot)
    change(host["callbacks"], arrays)
    storage.save(str(directory), storage.Snapshot(10, arrays, host))
    return tmp_path / "run"


def assert_a_misfit(saved, change, name):
    """Asserts that a changed state is refused, and that nothing changes."""
    _, snapshot = saved
    states = json.loads(json.dumps(snapshot.host["callbacks"]))
    arrays = {
        key.removeprefix("callbacks/"): value
        for key, value in snapshot.arrays.items()
    }
    change(states, arrays)
    given = CallbackList(callbacks(), SimpleNamespace(model_dir=None))
    given.attach(linear(), {})
    before = given.states()
    with pytest.raises(Misfit, match=name):
        given.load_states(keras_callbacks.join(states, arrays))
    assert given.states() == before


@pytest.mark.parametrize(
    "waiting",
    [
        [CODE],
        CODE,
        [CODE + '{"step": 1, "split": "train", "loss": 1.0}\n'],
        ['{"step": 1, "split": "train", "loss": 1.0}\n' + CODE],
        ['{"step": 1, "split": "train", "loss": "text"}\n'],
        ['{"step": 1, "split": "train", "loss": NaN}\n'],
        ['{"step": 1, "split": "train", "loss": [1]}\n'],
        ['{"step": -1, "split": "train"}\n'],
        ['{"step": "1", "split": "train"}\n'],
        ['{"step": 1, "split": "../other"}\n'],
        ['{"split": "train"}\n'],
        ["[" * 100_000],
        ["null"],
        [7],
        {"0": "{}"},
        None,
    ],
)
def test_lines_that_wait_are_lines_of_ours(saved, waiting):
    def change(states, arrays):
        states["JsonLines"] = {"waiting": waiting}

    assert_a_misfit(saved, change, "JsonLines")


def test_code_that_waits_for_being_written_is_not(saved, tmp_path, caplog):
    def change(states, arrays):
        states["JsonLines"] = {"waiting": [CODE]}

    model_dir = crafted(saved, tmp_path, change)
    assert train(model_dir, 12).step == 12
    assert "Passing over the checkpoint of step 10: JsonLines" in caplog.text
    assert "Going on from step 8" in caplog.text
    assert [line["step"] for line in lines(model_dir)] == [10, 12]
    assert "import" not in (model_dir / "metrics.jsonl").read_text()


def test_lines_that_wait_are_written_anew(saved, tmp_path):
    given = ' {"loss": 0.5,\t"step" :10, "split":"train", "a": null}   \n\n'

    def change(states, arrays):
        states["JsonLines"] = {"waiting": [given]}

    model_dir = crafted(saved, tmp_path, change)
    train(model_dir, 12)
    first = (model_dir / "metrics.jsonl").read_text().splitlines()[0]
    assert first == '{"step": 10, "split": "train", "loss": 0.5, "a": null}'


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(state=JSON | st.fixed_dictionaries({"waiting": st.lists(JSON)}))
def test_no_state_of_any_kind_is_more_than_a_misfit(state):
    for callback in (JsonLines(), EarlyStopping(), Checkpoint()):
        callback.run = SimpleNamespace(model_dir=None)
        before = callback.state()
        try:
            callback.load_state(state)
        except (Misfit, ValueError):
            assert callback.state() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("best", "0.5"),
        ("best", math.nan),
        ("best", True),
        ("best", None),
        ("best_step", -1),
        ("best_step", 1.5),
        ("wait", -1),
        ("wait", "many"),
        ("wait", None),
        ("wait", 10**30),
    ],
)
def test_early_stopping(saved, key, value):
    def change(states, arrays):
        states["EarlyStopping"][key] = value

    assert_a_misfit(saved, change, "Checkpoint|EarlyStopping")


@pytest.mark.parametrize("values", [[], {"x": 1.0}, {"4": "1"}, {"4": None}, 7])
def test_checkpoint(saved, values):
    def change(states, arrays):
        states["Checkpoint"] = {"values": values}

    assert_a_misfit(saved, change, "Checkpoint|EarlyStopping")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wait", "many"),
        ("wait", [1]),
        ("wait", {"a": 1}),
        ("stopped_epoch", True),
        ("best_weights", 7),
        ("best_weights", {"arrays": 3, "is_list": True}),
        ("best_weights", {"arrays": -1, "is_list": False}),
        ("best_weights", {"arrays": "2", "is_list": True}),
        ("best_weights", {"arrays": 1, "is_list": True}),
        ("best_weights", {"arrays": 10**15, "is_list": True}),
    ],
)
def test_callbacks_of_keras(saved, key, value):
    def change(states, arrays):
        states["EarlyStopping_2"][key] = value

    assert_a_misfit(saved, change, "Checkpoint|EarlyStopping")


def test_weights_of_another_shape_are_not_the_best(saved):
    def change(states, arrays):
        name = "EarlyStopping_2/best_weights/0"
        assert arrays[name].shape == (3, 1)
        arrays[name] = np.zeros((5, 1), "float32")

    assert_a_misfit(saved, change, "Checkpoint|EarlyStopping")


def test_objects_of_keras_callbacks_stay(saved, tmp_path):
    def change(states, arrays):
        states["CSVLogger"] = {"writer": 7, "csv_file": 7}

    model_dir = crafted(saved, tmp_path, change)
    assert train(model_dir, 16).step == 16


@pytest.mark.parametrize("states", [[], {"EarlyStopping": []}])
def test_states_of_the_wrong_kind(saved, tmp_path, caplog, states):
    _, snapshot = saved
    model_dir = crafted(saved, tmp_path, lambda states, arrays: None)
    host = snapshot.host | {"callbacks": states}
    storage.save(
        str(model_dir / "checkpoints"),
        storage.Snapshot(10, snapshot.arrays, host),
    )
    assert train(model_dir, 12).step == 12
    assert "Passing over the checkpoint of step 10" in caplog.text


class Picky(Callback):
    """Somebody else's, which checks nothing."""

    seen = 1

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"] + 1


def test_a_callback_that_fails_in_its_own_way(saved, tmp_path, caplog):
    def change(states, arrays):
        states["Picky"] = {"seen": "text"}
        states["JsonLines"] = {
            "waiting": ['{"step": 10, "split": "train", "of": 6}\n']
        }

    model_dir = crafted(saved, tmp_path, change)
    train(model_dir, 12, Picky())
    assert "Picky does not take its state (TypeError" in caplog.text
    # Nothing of the checkpoint that was passed over is left.
    assert "of" not in read_lines(model_dir / "metrics.jsonl")[0]


def test_where_none_fits_the_run_is_refused(tmp_path, monkeypatch):
    train(tmp_path / "run", 4, Picky())
    monkeypatch.setattr(Picky, "load_state", lambda self, s: s["other"])
    with pytest.raises(UserError, match=r"No checkpoint in .* fits") as error:
        train(tmp_path / "run", 8, Picky())
    assert "step 4" in str(error.value)
    assert "KeyError: 'other'" in str(error.value)


def test_a_value_of_another_kind_is_left_out(caplog):
    callback = keras.callbacks.ReduceLROnPlateau("loss")
    keras_callbacks.load(callback, {"wait": [1], "cooldown_counter": 3})
    assert callback.wait == 0
    assert callback.cooldown_counter == 3
    assert "ReduceLROnPlateau.wait is not restored" in caplog.text
