"""What TensorBoard, JsonLines and Progress show of a run that went back."""

import io
import json
import re
import time

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator,
)

from trainer import ArrayExamples, Callback, Guard, Trainer
from trainer_plugins import Checkpoint, JsonLines, Progress, TensorBoard


class Stubborn(Callback):
    """Makes the weights infinite at a step, some times over."""

    def __init__(self, step, times):
        super().__init__()
        self._step, self._times = step, times

    def on_train_batch_begin(self, batch, logs=None):
        if self.run.step == self._step and self._times:
            self._times -= 1
            self.run.model.weights[0].assign([[np.inf]] * 3)


def train(model_dir, *callbacks):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    data = ArrayExamples((x, x[:, :1]), shuffle=False)
    trainer = Trainer(
        model=lambda: keras.Sequential([keras.layers.Dense(1)]),
        loss="mse",
        data=lambda split: data,
        batch_size=4,
        strategy="default",
        guard=Guard("roll_back"),
    )
    trainer.train(
        12,
        model_dir=str(model_dir),
        steps_per_loop=2,
        log_every=2,
        callbacks=[*callbacks, Checkpoint(every=4)],
    )


def test_tensorboard_shows_each_step_once(tmp_path):
    train(tmp_path, Stubborn(6, 3), JsonLines(), TensorBoard())
    path = tmp_path / "train"
    events = EventAccumulator(str(path), size_guidance={"tensors": 0}).Reload()
    steps = [event.step for event in events.Tensors("loss")]
    assert steps == [2, 4, 6, 8, 10, 12]
    # Known, as there is a guard: that of the step itself.
    norms = [
        float(tf.make_ndarray(one.tensor_proto))
        for one in events.Tensors("learning/gradient_norm")
    ]
    assert len(norms) == 6
    assert all(0 < norm < np.inf for norm in norms)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == steps
    # Each rollback starts a file, and one that hides the former's steps.
    assert len(list(path.iterdir())) == 1 + 2 * 3


def test_the_bar_goes_back(tmp_path):
    seen = []

    class Look(Callback):
        def on_roll_back(self, step):
            # The bar is drawn four times a second.
            time.sleep(0.6)
            seen.append((step, re.findall(r"(\d+)/12", out.getvalue())[-1]))

    out = io.StringIO()
    progress = Progress(
        console=Console(file=out, force_terminal=True, width=80)
    )
    train(tmp_path, Stubborn(6, 1), progress, Look())
    assert seen == [(4, "4")]
