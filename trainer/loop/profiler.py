"""`profile`: traces some of a run's steps, for TensorBoard's profile tab."""

import contextlib
import os
from typing import Any

import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.runtime import run_paths

_FOLDER = "tensorboard/train"


class Profiler(Callback):
    """Traces the steps between two, in the chief.

    Each of them is a host loop of its own in every process, so that the trace
    shows where it begins.

    Args:
        steps: such as `"10:20"`: once 10 steps are done, until 20 are.
    """

    def __init__(self, steps: str) -> None:
        super().__init__()
        self._wanted = steps
        self._steps = range(*map(int, steps.split(":")))
        self._is_tracing = False
        self._mark = contextlib.ExitStack()

    def setup(self) -> None:
        """Checks the steps, and where to write.

        Raises:
            UserError: there are no such steps, or there is no run directory.
        """
        model_dir, last_step = self.run.model_dir, self.run.steps
        if model_dir is None:
            raise UserError(
                f"profile = {self._wanted!r} needs a run directory to write "
                "to: set model_dir."
            )
        if last_step is not None and self._steps.stop > last_step:
            raise UserError(
                f"profile = {self._wanted!r} ends after the run, which has "
                f"{last_step:,} steps. Choose an end of at most {last_step}."
            )
        run_paths.prepare_directory(model_dir, _FOLDER)
        self._path = os.path.join(model_dir, _FOLDER)

    def next_due(self, step: int) -> int | None:
        """See `Callback.next_due`."""
        if step >= self._steps.stop:
            return None
        return max(step + 1, self._steps.start)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Starts the trace when it is due, and marks the step in it."""
        step = self.run.step
        if step not in self._steps or not self.run.plugin.is_chief:
            return
        if not self._is_tracing:
            try:
                tf.profiler.experimental.start(self._path)
            # Training does not depend on it.
            except tf.errors.AlreadyExistsError:
                logging.warning(
                    "Nothing is profiled: another profiler is running, perhaps "
                    "that of keras.callbacks.TensorBoard."
                )
                self._steps = range(0)
                return
            self._is_tracing = True
        mark = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
        self._mark.enter_context(mark)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Ends the mark, and after the last step the trace."""
        self._mark.close()
        if self.run.step >= self._steps.stop:
            self.close()

    def close(self) -> None:
        """Ends and writes the trace, if there is one."""
        if not self._is_tracing:
            return
        self._mark.close()
        self._is_tracing = False
        self.run.parts.step.numpy()  # Waits for the device.
        try:
            tf.profiler.experimental.stop()
        except (tf.errors.OpError, OSError) as error:
            logging.warning("The profile could not be written: %s", error)
        else:
            logging.warning("A profile is in %s.", self._path)
