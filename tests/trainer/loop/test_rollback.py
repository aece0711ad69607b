"""Runs that meet a batch which is no number, and what becomes of them."""

import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import as_numpy, lines, newest, saved_steps, skipped_batches
from trainer import ArrayExamples, Callback, Diverged, Guard, Trainer, UserError
from trainer_plugins import Checkpoint, JsonLines

BATCH, BATCHES = 4, 20


def arrays(*poisoned):
    """Twenty batches, some of which hold an input that is no number."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCHES, BATCH, 3)).astype("float32")
    for batch in poisoned:
        x[batch, 2, 1] = math.nan
    y = np.nansum(x, -1, keepdims=True)
    return x, y.astype("float32")


def examples(stacked):
    flat = tuple(part.reshape(-1, part.shape[-1]) for part in stacked)
    return lambda split: ArrayExamples(flat, shuffle=False)


def dataset(stacked):
    made = tf.data.Dataset.from_tensor_slices(stacked)
    return lambda split: made


def make(data, guard, **options):
    return Trainer(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        loss="mse",
        metrics=[keras.metrics.MeanAbsoluteError],
        data=data,
        strategy="default",
        guard=guard,
        **{"batch_size": BATCH} | options,
    )


def train(trainer, model_dir, steps=15, *, callbacks=(), every=3):
    return trainer.train(
        steps,
        model_dir=str(model_dir),
        steps_per_loop=3,
        log_every=6,
        callbacks=[*callbacks, JsonLines(), Checkpoint(every=every)],
    )


class Events(Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_divergence(self, step):
        self.seen.append(("on_divergence", step))

    def on_roll_back(self, step):
        self.seen.append(("on_roll_back", step))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("on_train_batch_end", self.run.step))

    def on_train_end(self, logs=None):
        self.seen.append(("on_train_end", self.run.step))

    def close(self):
        self.seen.append(("close", self.run.step))


def test_stopping_saves_nothing_of_what_went_wrong(tmp_path):
    trainer, events = make(examples(arrays(7)), Guard()), Events()
    with pytest.raises(Diverged) as raised:
        train(trainer, tmp_path, callbacks=[events])
    message = str(raised.value)
    assert "\n" not in message
    assert "after step 7, on batch 7 of the training data" in message
    assert "loss is nan" in message
    assert "step_00000006" in message
    assert saved_steps(tmp_path) == [3, 6]
    assert np.isfinite(trainer.model.get_weights()[0]).all()
    assert [line["step"] for line in lines(tmp_path)] == [6]
    assert events.seen == [
        ("on_train_batch_end", 3),
        ("on_train_batch_end", 6),
        ("on_divergence", 9),
        ("close", 9),
    ]
    assert not (tmp_path / "skipped_batches.json").exists()


@pytest.mark.parametrize("source", [examples, dataset])
def test_what_is_logged_and_saved_is_that_of_sound_data(tmp_path, source):
    # The first trainer of a process books the process's start-up.
    make(source(arrays()), None)
    begin, events = time.time(), Events()
    early = keras.callbacks.EarlyStopping("loss", patience=100)
    trainer = make(source(arrays(7, 10)), Guard("roll_back"))
    train(trainer, tmp_path / "a", callbacks=[events, early])
    accounts, took = trainer._accounts.summary(), time.time() - begin
    sound = tuple(np.delete(part, [7, 10], 0) for part in arrays())
    stopping = keras.callbacks.EarlyStopping("loss", patience=100)
    train(make(source(sound), None), tmp_path / "b", callbacks=[stopping])

    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    ours, theirs = (newest(tmp_path / name) for name in "ab")
    assert ours.step == theirs.step == 15
    expected = as_numpy(theirs)
    for name, array in as_numpy(ours).items():
        assert array.tobytes() == expected.pop(name).tobytes(), name
    assert not expected
    assert vars(early)["best"] == vars(stopping)["best"]
    # Batch 10 is met on the tenth step: one was stepped over by then.
    assert [e for e in events.seen if e[0] != "on_train_batch_end"] == [
        ("on_divergence", 9),
        ("on_roll_back", 6),
        ("on_divergence", 12),
        ("on_roll_back", 9),
        ("on_train_end", 15),
        ("close", 15),
    ]
    first, second = skipped_batches(tmp_path / "a")
    assert (first["batch"], first["step"]) == (7, 7)
    assert (second["batch"], second["step"]) == (10, 9)
    assert first["reason"] == "loss is nan"
    assert first["loss"] is first["gradient_norm"] is None
    assert first["time"] <= second["time"]
    assert accounts["lost"] > 0
    # No second is booked twice.
    assert accounts["total"] == pytest.approx(took, abs=0.1)
    assert trainer._run.train_runner.traces == 1


def test_a_run_goes_back_to_its_very_beginning(tmp_path):
    trainer = make(examples(arrays(1)), Guard("roll_back"))
    train(trainer, tmp_path / "a", every=1000)
    sound = tuple(np.delete(part, 1, 0) for part in arrays())
    reference = make(examples(sound), None)
    train(reference, tmp_path / "b")
    for ours, theirs in zip(
        trainer.model.get_weights(), reference.model.get_weights(), strict=True
    ):
        assert ours.tobytes() == theirs.tobytes()
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_a_run_goes_back_so_often_and_no_more(tmp_path):
    data = examples(arrays(4, 7, 8, 11))
    with pytest.raises(Diverged, match="rolled back 3 times already") as first:
        train(make(data, Guard("roll_back")), tmp_path)
    assert [entry["batch"] for entry in skipped_batches(tmp_path)] == [4, 7, 8]
    # Started again, it fails in the same way: a supervisor sees a defect.
    again = make(data, Guard("roll_back"))
    with pytest.raises(Diverged) as second:
        train(again, tmp_path)
    assert str(second.value) == str(first.value)
    assert again.step == 9
    # With more patience it ends.
    train(make(data, Guard("roll_back", max_rollbacks=4)), tmp_path)
    assert saved_steps(tmp_path)[-1] == 15


def test_batches_of_another_size_are_not_left_out(tmp_path, caplog):
    """Their numbers mean other examples; nothing is skipped by mistake."""
    data = examples(arrays(7))
    train(make(data, Guard("roll_back")), tmp_path, steps=9)
    halved = make(data, Guard("roll_back"), batch_size=BATCH // 2)
    train(halved, tmp_path, steps=21)
    assert "1 of the batches in skipped_batches.json are not" in caplog.text
    found = [(e["batch_size"], e["batch"]) for e in skipped_batches(tmp_path)]
    assert found == [(BATCH, 7), (BATCH // 2, 15)]


def test_a_damaged_checkpoint_is_passed_over_and_goes(tmp_path):
    class Damage(Callback):
        runs_last = True

        def __init__(self):
            super().__init__()
            self.left = None

        def on_save(self, step, logs):
            if step == 6 and self.left is None:
                path = tmp_path / "checkpoints" / "step_00000006"
                (path / "state.json").write_text("{}")

        def on_roll_back(self, step):
            self.left = (step, saved_steps(tmp_path))

    damage = Damage()
    make(examples(arrays(7)), Guard("roll_back")).train(
        9,
        model_dir=str(tmp_path),
        steps_per_loop=3,
        callbacks=[Checkpoint(every=3, asynchronous=False), damage],
    )
    assert damage.left == (3, [0, 3])
    assert saved_steps(tmp_path) == [3, 6, 9]
    assert newest(tmp_path).step == 9


def test_going_back_needs_checkpoints(tmp_path):
    trainer = make(examples(arrays()), Guard("roll_back"))
    with pytest.raises(UserError, match=r"add @Checkpoint\(\)"):
        trainer.train(5, model_dir=str(tmp_path), callbacks=[JsonLines()])
