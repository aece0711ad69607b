"""A run that is asked to leave, in one process and without signals."""

import keras
import numpy as np
import pytest

from tests.helpers import compare, newest, saved_steps
from trainer import Callback, StartAgain, Trainer
from trainer_plugins import Checkpoint, JsonLines

X = np.random.default_rng(0).normal(size=(512, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
STEPS = 30


def trainer():
    # Keras counts its names up; what is compared here must have the same.
    keras.utils.clear_session(free_memory=False)

    def data(split):
        return (X, Y) if split == "train" else (X[:, ::-1], Y)

    return Trainer(
        model=lambda: keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1)]
        ),
        loss="mse",
        optimizer=lambda: keras.optimizers.Adam(0.05),
        data=data,
        batch_size=2,
        strategy="default",
        ema_momentum=0.5,
    )


def train(model_dir, *callbacks, **options):
    """256 batches in an evaluation: three graph calls."""
    made = trainer()
    made.train_and_evaluate(
        STEPS,
        model_dir=str(model_dir),
        callbacks=[JsonLines(), *callbacks, Checkpoint(every=8)],
        **{
            "steps_per_loop": 5,
            "log_every": 5,
            "eval_every": 10,
            **options,
        },
    )
    return made


class Leave(Callback):
    """Asks to leave once, at an event after a step."""

    def __init__(self, event, step):
        super().__init__()
        self._event, self._step, self._asked = event, step, False

    def _ask(self, event):
        is_there = event == self._event and self.run.step >= self._step
        if is_there and not self._asked:
            self._asked = True
            self.run.start_again("for a test")

    def on_train_batch_begin(self, batch, logs=None):
        self._ask("batch_begin")

    def on_train_batch_end(self, batch, logs=None):
        self._ask("batch_end")

    def on_test_begin(self, logs=None):
        self._ask("test_begin")

    def on_test_end(self, logs=None):
        self._ask("test_end")

    def on_epoch_begin(self, epoch, logs=None):
        self._ask("epoch_begin")

    def on_log(self, step, split, logs):
        self._ask(f"log_{split}")

    def on_save(self, step, logs):
        self._ask("save")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


@pytest.mark.parametrize(
    "events",
    [
        # The first such event after the step before; each ends an attempt.
        {
            "epoch_begin": 0,
            "batch_begin": 5,
            "batch_end": 8,
            "test_begin": 10,
            "test_end": 10,
            "log_eval": 10,
            "log_train": 20,
            "save": 25,
        },
        pytest.param(
            {"batch_end": 30, "test_begin": 30, "save": 30},
            marks=pytest.mark.long,
        ),
    ],
    ids=["on the way", "at the end"],
)
def test_leaving_at_any_event_changes_nothing(tmp_path, whole, events):
    for event, step in events.items():
        with pytest.raises(StartAgain, match="for a test; left at step"):
            train(tmp_path, Leave(event, step))
        assert saved_steps(tmp_path)[-1] >= step, event
    train(tmp_path)
    compare(tmp_path, whole)


def test_an_evaluation_is_given_up_and_done_again(tmp_path, whole):
    with pytest.raises(StartAgain, match="left at step 10"):
        train(tmp_path, Leave("test_begin", 10))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert '"eval"' not in text
    found = newest(tmp_path)
    assert found.host["loop"]["unfired_from"] == 8
    train(tmp_path)
    compare(tmp_path, whole)


def test_a_save_is_made_when_somebody_asks(tmp_path):
    class Ask(Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.run.step == 15:
                self.run.save_soon()

    made = trainer()
    made.train(
        20,
        model_dir=str(tmp_path),
        callbacks=[Ask(), Checkpoint(every=1000)],
        steps_per_loop=5,
    )
    assert saved_steps(tmp_path) == [15, 20]
