"""Checkpoints are complete or absent, kept as asked, and found again."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import make_trainer, saved_steps
from trainer import UserError
from trainer.plugin_api import storage
from trainer_plugins import Checkpoint


def model(units=4):
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(units, name="body"),
            keras.layers.Dense(1, name="head"),
        ]
    )


def snapshot(step, value=1.0):
    arrays = {"model/0000": np.full((3, 2), value, "float32")}
    return storage.Snapshot(step, arrays, {"note": "x", "variables": {}})


@pytest.fixture
def saved(tmp_path):
    directory = str(tmp_path / "checkpoints")
    for step in (10, 20):
        storage.save(directory, snapshot(step, float(step)))
    return directory


def test_reads_back_what_was_written(saved):
    found = storage.load_newest(saved)
    assert found.step == 20
    assert found.host == {"note": "x", "variables": {}}
    assert np.array_equal(
        found.arrays["model/0000"], np.full((3, 2), 20.0, "float32")
    )
    # It is a TensorFlow checkpoint too.
    path = os.path.join(saved, "step_00000020", "arrays")
    assert tf.train.load_variable(path, "model/0000")[0, 0] == 20.0


def test_a_failed_save_leaves_what_was_there(saved, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.files, "synchronize", full)
    with pytest.raises(OSError, match="No space"):
        storage.save(saved, snapshot(30))
    assert sorted(os.listdir(saved)) == ["step_00000010", "step_00000020"]


def train_to_a_best(steps, *, eval_every, model_dir, **keeps):
    """Trains with a loss that falls for four steps, and then rises."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.05, -0.05])
    trainer = make_trainer(model, optimizer=lambda: keras.optimizers.SGD(rate))
    trainer.train_and_evaluate(
        steps,
        eval_every=eval_every,
        model_dir=str(model_dir),
        callbacks=[Checkpoint(keep_best=1, **keeps)],
    )


def test_keeps_the_last_and_the_best(tmp_path):
    train_to_a_best(20, eval_every=2, model_dir=tmp_path, every=2, keep_last=2)
    assert saved_steps(tmp_path) == [4, 18, 20]


def test_the_best_is_one_that_was_measured(tmp_path):
    """The best value is that of step 4, between two periodic saves."""
    train_to_a_best(18, eval_every=4, model_dir=tmp_path, every=5, keep_last=1)
    assert saved_steps(tmp_path) == [4, 18]
    path = tmp_path / "checkpoints" / "step_00000018" / "state.json"
    state = json.loads(path.read_text())
    values = state["callbacks"]["Checkpoint"]["values"]
    assert set(values) <= {"4", "15", "18"}


@pytest.mark.parametrize(
    ("asynchronous", "units"), [(True, 4), (True, 200_000), (False, 4)]
)
def test_saved_values_are_those_of_their_step(tmp_path, asynchronous, units):
    """Training goes on while a save is written."""
    seen = {}

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[trainer.step] = [
                keras.ops.convert_to_numpy(v) for v in self.model.variables
            ]

    trainer = make_trainer(lambda: model(units))
    trainer.train(
        12,
        steps_per_loop=1,
        model_dir=str(tmp_path),
        callbacks=[
            Note(),
            Checkpoint(every=1, keep_last=12, asynchronous=asynchronous),
        ],
    )
    paths = storage.listing(str(tmp_path / "checkpoints"))
    assert len(paths) == 12
    for path in paths:
        found = storage.load(path)
        for i, value in enumerate(seen[found.step]):
            assert np.array_equal(found.arrays[f"model/{i:04d}"], value)


def test_another_model_is_named(tmp_path):
    make_trainer(model).train(
        2, model_dir=str(tmp_path), callbacks=[Checkpoint()]
    )
    other = make_trainer(lambda: model(units=5))
    with pytest.raises(UserError, match=r"body/kernel has shape \[3, 5\]"):
        other.train(4, model_dir=str(tmp_path), callbacks=[Checkpoint()])


def test_a_store_has_a_valid_checkpoint_at_any_moment(monkeypatch):
    """`ram://` stands for a store, where directories cannot be renamed."""
    directory = "ram://checkpoints/in_place"
    storage.save(directory, snapshot(5))
    write = storage._write_json
    seen = []

    def valid():
        paths = storage.listing(directory)
        valid = [p for p in paths if storage.find_fault(p) is None]
        return [os.path.basename(path) for path in valid]

    def watched(path, value):
        seen.append((os.path.basename(path), valid()))
        write(path, value)

    monkeypatch.setattr(storage, "_write_json", watched)
    storage.save(directory, snapshot(5, 2.0))
    # The earlier one while the new one is written under the other name.
    assert seen == [
        ("state.json", ["step_00000005"]),
        ("manifest.json", ["step_00000005"]),
    ]
    assert valid() == ["step_00000005.old"]
    # What a killed save has left is removed by the next attempt.
    tf.io.gfile.makedirs(f"{directory}/step_00000009")
    write(f"{directory}/step_00000009/state.json", {})
    storage.remove_leftovers(directory)
    storage.remove(f"{directory}/step_00000005.old")
    assert storage.listing(directory) == []
