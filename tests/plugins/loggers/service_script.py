"""A run that logs to a service, and may kill itself: KIND DIR STEPS KILL_AT."""

import os
import signal
import sys

import numpy as np

from tests.helpers import linear, make_trainer
from trainer import Callback
from trainer_plugins import Checkpoint, JsonLines, MLflow, WandB


class LogsMedia(Callback):
    """Logs a value of each kind."""

    def on_train_batch_end(self, batch, logs=None):
        self.run.log("own", self.run.step)

    def on_test_end(self, logs=None):
        log, step = self.run.log, self.run.step
        log("images", np.full((2, 4, 4, 1), step, np.uint8), kind="image")
        log("histogram", np.arange(step), kind="histogram")
        log("sound", np.zeros(80), kind="audio", sample_rate=8000)
        log("text", f"step {step}")


class Kill(Callback):
    """Ends the process at a step, as the kernel does when memory is short."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def next_due(self, step):
        return self._step if self._step > step else None

    def on_train_batch_end(self, batch, logs=None):
        if self.run.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(kind, model_dir, steps, kill_at):
    logger = MLflow() if kind == "mlflow" else WandB(mode="offline")
    callbacks = [logger, JsonLines(), LogsMedia(), Checkpoint(every=12)]
    if kill_at != "never":
        callbacks.append(Kill(int(kill_at)))
    make_trainer(linear).train_and_evaluate(
        int(steps),
        model_dir=model_dir,
        callbacks=callbacks,
        log_every=4,
        steps_per_loop=4,
        eval_every=8,
        verbose=0,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
