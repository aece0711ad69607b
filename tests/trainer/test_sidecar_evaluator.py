"""What the evaluator beside a training process does, in one process."""

import logging
import shutil
import threading

import keras
import numpy as np
import pytest

from tests.helpers import best_of, newest, read_lines
from tests.sets import one_in
from trainer import Callback, Trainer, UserError, run
from trainer.plugin_api import storage
from trainer_plugins import (
    Checkpoint,
    EarlyStopping,
    JsonLines,
    TensorBoard,
)

X = np.array([[1.0], [2.0]], "float32")


def make_trainer(**options):
    def model():
        dense = keras.layers.Dense(1, use_bias=False, name="dense")
        return keras.Sequential([keras.Input((1,)), dense], name="net")

    defaults = {
        "model": model,
        "loss": "mean_squared_error",
        "data": lambda split: (X, 0 * X),
        "strategy": "default",
        "batch_size": 2,
    }
    return Trainer(**defaults | options)


def loss_of(weight):
    """The mean square of weight * x."""
    return weight**2 * float(np.mean(X**2))


def write_checkpoint(model_dir, step, weight):
    trainer = make_trainer()
    trainer.model.set_weights([np.array([[weight]], "float32")])
    trainer._built.state.step = step
    return storage.save(
        str(model_dir / "checkpoints"), trainer._built.state.capture()
    )


def follow_to(model_dir, train_steps, *, trainer=None, **options):
    made = make_trainer() if trainer is None else trainer
    return run(
        mode="continuous_eval",
        model_dir=str(model_dir),
        trainer=lambda strategy: made,
        strategy="default",
        train_steps=train_steps,
        **{"eval_timeout": "0.3s", "eval_poll_seconds": 0.05} | options,
    )


def test_newest_wins_and_others_are_skipped(tmp_path):
    for step, weight in ((1, 3.0), (2, 1.0), (3, 2.0)):
        write_checkpoint(tmp_path, step, weight)
    found = follow_to(tmp_path, 3, callbacks=[JsonLines()])
    assert found["step"] == 3
    assert found["loss"] == pytest.approx(loss_of(2.0))
    (line,) = read_lines(tmp_path / "metrics_evaluator.jsonl")
    assert (line["step"], line["split"]) == (3, "eval")
    assert line["loss"] == found["loss"]


@pytest.mark.parametrize(
    ("mode", "expected"), one_in(3, [("min", 2), ("max", 1), ("auto", 2)])
)
def test_the_best_is_kept_when_it_gets_worse(tmp_path, mode, expected):
    weights = {1: 3.0, 2: 1.0, 3: 2.0}
    for step, weight in weights.items():
        write_checkpoint(tmp_path, step, weight)
        found = follow_to(tmp_path, step, best_mode=mode)
        # The training process keeps few checkpoints.
        shutil.rmtree(tmp_path / "checkpoints")
    assert found["step"] == 3
    assert found["best_step"] == expected
    best = loss_of(weights[expected])
    assert found["best_val_loss"] == pytest.approx(best)
    record = best_of(tmp_path)
    assert record["step"] == expected
    assert record["value"] == pytest.approx(best)
    kept = storage.load_newest(str(tmp_path / "best"))
    assert kept.arrays["model/0000"] == weights[expected]


def test_the_best_starts_a_new_run(tmp_path):
    write_checkpoint(tmp_path, 5, 4.0)
    follow_to(tmp_path, 5)
    new = tmp_path / "new"
    run(
        mode="train",
        model_dir=str(new),
        trainer=lambda strategy: make_trainer(learning_rate=0.0),
        strategy="default",
        train_steps=1,
        init_from=str(tmp_path / "best"),
        callbacks=[Checkpoint()],
    )
    assert newest(new).arrays["model/0000"] == 4.0


def test_a_value_that_is_not_finite_is_never_best(tmp_path):
    write_checkpoint(tmp_path, 1, float("nan"))
    found = follow_to(tmp_path, 1)
    assert "best_step" not in found
    assert storage.listing(str(tmp_path / "best")) == []
    write_checkpoint(tmp_path, 2, 1.0)
    assert follow_to(tmp_path, 2)["best_step"] == 2
    write_checkpoint(tmp_path, 3, float("nan"))
    assert follow_to(tmp_path, 3)["best_step"] == 2
    assert best_of(tmp_path)["step"] == 2


def test_a_step_is_evaluated_once_over_restarts(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    for _ in range(2):
        found = follow_to(tmp_path, 9, callbacks=[JsonLines()])
    assert (found["step"], found["best_step"]) == (1, 1)
    assert len(read_lines(tmp_path / "metrics_evaluator.jsonl")) == 1


def test_ends_with_the_run_after_its_last_checkpoint(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 1, 1.0)
    load_newer = storage.load_newer

    def load(*arguments):
        found = load_newer(*arguments)
        # The last checkpoint appears between the last look and the end.
        if found is None and not (tmp_path / "run.json").exists():
            write_checkpoint(tmp_path, 2, 2.0)
            (tmp_path / "run.json").write_text('{"exit_reason": "done"}')
        return found

    monkeypatch.setattr(storage, "load_newer", load)
    found = follow_to(tmp_path, 9, eval_timeout="1h")
    assert found["step"] == 2


def test_no_checkpoint_in_time_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match=r"no usable checkpoint after 0\.3s"):
        follow_to(tmp_path / "not_there", 9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_timeout": "10 steps"}, "run.eval_timeout"),
        ({"eval_poll_seconds": 0.0}, "run.eval_poll_seconds"),
        ({"best_monitor": "val_accuracy"}, "'val_accuracy' is not measured"),
        ({"best_monitor": "loss"}, "Did you mean 'val_loss'"),
    ],
)
def test_what_the_user_gave_is_checked(tmp_path, options, words):
    write_checkpoint(tmp_path, 1, 1.0)
    with pytest.raises(UserError, match=words):
        follow_to(tmp_path, 1, **options)


def test_another_model_is_refused(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    other = make_trainer(
        model=lambda: keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1)]
        )
    )
    with pytest.raises(UserError, match="a different model"):
        follow_to(tmp_path, 1, trainer=other)


def test_the_optimizer_may_be_another_one(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)  # With Adam.
    plain = make_trainer(optimizer="sgd")
    found = follow_to(tmp_path, 1, trainer=plain)
    assert found["loss"] == pytest.approx(loss_of(1.0))


@pytest.mark.parametrize(
    "fault", one_in(3, ["no manifest", "short arrays", "empty"])
)
def test_a_torn_checkpoint_is_passed_over_in_silence(tmp_path, fault, caplog):
    write_checkpoint(tmp_path, 1, 1.0)
    torn = tmp_path / "checkpoints" / "step_00000002"
    write_checkpoint(tmp_path, 2, 2.0)
    if fault == "no manifest":
        (torn / "manifest.json").unlink()
    elif fault == "short arrays":
        (data,) = torn.glob("arrays.data-*")
        data.write_bytes(data.read_bytes()[:-1])
    else:
        shutil.rmtree(torn)
        torn.mkdir()
    with caplog.at_level(logging.WARNING):
        assert follow_to(tmp_path, 9)["step"] == 1
    assert not caplog.records


def test_checkpoints_vanish_while_they_are_read(tmp_path):
    directory = str(tmp_path / "checkpoints")
    values = np.arange(20000.0)
    done = threading.Event()

    def train():
        step, before = 0, None
        while not done.is_set():
            step += 1
            arrays = {"a": values + step, "b": values - step}
            snapshot = storage.Snapshot(step, arrays, {"variables": {}})
            path = storage.save(directory, snapshot)
            if before is not None:
                storage.remove(before)
            before = path

    thread = threading.Thread(target=train)
    thread.start()
    seen = []
    try:
        while len(seen) < 15 and thread.is_alive():
            newest = seen[-1] if seen else 0
            snapshot = storage.load_newer(directory, newest)
            if snapshot is not None:
                np.testing.assert_array_equal(
                    snapshot.arrays["a"] - snapshot.step, values
                )
                np.testing.assert_array_equal(
                    snapshot.arrays["b"] + snapshot.step, values
                )
                seen.append(snapshot.step)
    finally:
        done.set()
        thread.join()
    assert len(seen) == 15
    assert seen == sorted(set(seen))


def test_only_what_watches_takes_part(tmp_path):
    write_checkpoint(tmp_path, 1, 1.0)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    callbacks = [
        JsonLines(),
        TensorBoard(),
        Checkpoint(),
        EarlyStopping(patience=1),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.TensorBoard(str(tmp_path / "keras")),
    ]
    follow_to(tmp_path, 1, callbacks=callbacks)
    assert {p.name for p in tmp_path.iterdir()} == {
        "checkpoints",
        "best",
        "metrics_evaluator.jsonl",
        "evaluator",
    }
    inside = sorted(p.name for p in (tmp_path / "checkpoints").rglob("*"))
    assert inside == [name for name in before if name != "checkpoints"]


class Norm(keras.callbacks.Callback):
    """Adds a value to those of an evaluation, as in Keras."""

    def __init__(self):
        super().__init__()
        self.events = []

    def on_test_begin(self, logs=None):
        self.events.append("begin")

    def on_test_batch_begin(self, batch, logs=None):
        self.events.append(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.events.append(dict(logs))

    def on_test_end(self, logs=None):
        logs["norm"] = abs(float(self.model.get_weights()[0][0, 0]))

    def on_train_begin(self, logs=None):
        raise AssertionError("this process does not train")


class Noted(Callback):
    """Logs a number and a text at each evaluation."""

    def on_test_end(self, logs=None):
        assert self.following
        self.run.log("twice", 2 * logs["loss"])
        self.run.log("of", f"the set {self.run.evaluating}")

    def on_log(self, step, split, logs):
        raise AssertionError("it may act on the run that trains")


def test_what_callbacks_add_to_an_evaluation_is_kept(tmp_path):
    norm, trainer = Norm(), make_trainer()
    callbacks = [JsonLines(), TensorBoard(), norm, Noted()]
    for step, weight in ((1, -3.0), (2, 4.0)):
        write_checkpoint(tmp_path, step, weight)
        found = follow_to(
            tmp_path,
            step,
            trainer=trainer,
            callbacks=callbacks,
            best_monitor="val_norm",
            best_mode="min",
        )
        lines = read_lines(tmp_path / "metrics_evaluator.jsonl")
        assert lines[-1]["norm"] == found["norm"] == abs(weight)
        assert lines[-1]["twice"] == pytest.approx(2 * loss_of(weight))
    assert (found["best_step"], found["best_val_norm"]) == (1, 3.0)
    one = ["begin", 0, {"loss": pytest.approx(loss_of(3.0))}]
    assert norm.events[:3] == one
    assert len(norm.events) == 6
    events = (tmp_path / "evaluator").iterdir()
    assert all(b"the set eval" in one.read_bytes() for one in events)
    with pytest.raises(UserError, match="outside of a run"):
        trainer.log("later", 1.0)
