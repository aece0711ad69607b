"""What a checkpoint says of callbacks is checked before it is believed."""

import json

import keras
import pytest

from tests.helpers import linear, lines, make_trainer, read_lines
from trainer import Callback, UserError
from trainer.checkpoint import storage
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


def test_code_that_waits_for_being_written_is_not(saved, tmp_path, caplog):
    def change(states, arrays):
        states["JsonLines"] = {"waiting": [CODE]}

    model_dir = crafted(saved, tmp_path, change)
    assert train(model_dir, 12).step == 12
    assert "Passing over the checkpoint of step 10: JsonLines" in caplog.text
    assert "Going on from step 8" in caplog.text
    assert [line["step"] for line in lines(model_dir)] == [10, 12]
    assert "import" not in (model_dir / "metrics.jsonl").read_text()


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
        entry = {"step": 10, "split": "train", "values": {"of": 6}}
        states["JsonLines"] = {"waiting": [entry | {"final": False}]}

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
