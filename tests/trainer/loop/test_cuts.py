"""Where graph calls and attempts end shows in nothing that a run leaves."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import newest
from trainer import Callback, StartAgain, Trainer
from trainer_plugins import Checkpoint, EarlyStopping, JsonLines

RNG = np.random.default_rng(2)
X = RNG.normal(size=(90, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
STEPS = 30
OPTIONS = {"steps_per_loop": 5, "log_every": 10, "eval_every": 15}


def data(split):
    """Shuffled, and nobody says by what seed."""
    made = tf.data.Dataset.from_tensor_slices((X, Y))
    return (made.shuffle(90) if split == "train" else made).batch(8)


def make():
    return Trainer(
        model=lambda: keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, "sigmoid"),
            ]
        ),
        loss="binary_crossentropy",
        metrics=["mae"],
        data=data,
        batch_size=8,
        strategy="default",
    )


class Events(keras.callbacks.Callback):
    """Where Keras' callbacks act, and what they see."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(["begin", batch])

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(["end", batch, logs["loss"]])


def callbacks():
    """Of Keras', those that change the learning rate."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0),
        Events(),
        EarlyStopping(patience=9),
    ]


def train(folder, steps=STEPS, *added, trainer=None, **options):
    trainer = trainer or make()
    used = [*callbacks(), *added]
    saving = [JsonLines(), Checkpoint(every=1000)] if folder else []
    trainer.train_and_evaluate(
        steps,
        model_dir=folder and str(folder),
        callbacks=[*used, *saving],
        **{**OPTIONS, **options},
    )
    return trainer, used


def left(folder):
    """All that a run has left but for times: logs, arrays, states."""
    text = (folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line.pop("examples_per_second", None)
    found = newest(folder)
    arrays = {n: np.asarray(a).tobytes() for n, a in found.arrays.items()}
    host = {key: found.host[key] for key in ("logs", "callbacks")}
    return lines, arrays, host


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return left(folder)


def compare(folder, whole, *, but=()):
    lines, arrays, host = left(folder)
    expected = dict(whole[1])
    for name in but:
        assert arrays.pop(name) != expected.pop(name)
    assert lines == whole[0]
    assert arrays == expected
    assert host == whole[2]


def test_a_longer_run_goes_on_as_if_it_had_been_one(tmp_path, whole):
    train(tmp_path, 13)
    lines, _, host = left(tmp_path)
    ended = [(line["step"], line["split"]) for line in lines]
    assert ended[-2:] == [(13, "train"), (13, "eval")]
    # Once more: there is nothing to do, and nothing is lost.
    train(tmp_path, 13)
    assert left(tmp_path)[0] == lines
    # An evaluation that is only for the end decides nothing.
    assert host["callbacks"]["EarlyStopping"]["best_step"] is None
    train(tmp_path)
    # They do see where each of the runs ended.
    compare(tmp_path, whole, but=["callbacks/Events/seen"])


def test_calls_that_a_clock_has_cut_show_nowhere(tmp_path, whole):
    trainer, _ = train(tmp_path, loop_seconds=0.0)
    assert trainer._built.last.steps_per_call == 1
    compare(tmp_path, whole)


class LeaveWithin(Callback):
    """Asks to leave within a host loop, once its calls are short."""

    runs_last = True

    def on_save(self, step, logs):
        if self.run.state.host.is_within and step > 12:
            self.run.start_again("for a test")


def test_a_run_may_leave_within_a_host_loop(tmp_path, whole):
    with pytest.raises(StartAgain) as left_at:
        train(tmp_path, STEPS, LeaveWithin(), loop_seconds=0.0)
    assert "left at step 14" in str(left_at.value)
    train(tmp_path)
    compare(tmp_path, whole)


def test_what_a_plugin_leaves_unseeded_has_the_runs_seed():
    """The same whatever came before, and another one for another seed."""

    def first(seed):
        seen.append([tf.random.normal([]).numpy(), np.random.rand()])
        trainer = Trainer(
            model=keras.Sequential, data=unseeded, batch_size=8, seed=seed
        )
        batches = trainer.batches("train")
        return next(iter(batches.read(start=0))).numpy()

    def unseeded(split):
        order = np.random.permutation(90)
        return tf.data.Dataset.from_tensor_slices(X[order]).shuffle(90).batch(8)

    seen = []
    tf.random.set_seed(5)
    np.random.seed(5)
    np.testing.assert_array_equal(first(1), first(1))
    assert (first(1) != first(2)).any()
    # Nobody else's random numbers are touched.
    tf.random.set_seed(5)
    np.random.seed(5)
    assert seen == [
        [tf.random.normal([]).numpy(), np.random.rand()] for _ in seen
    ]
