"""`profile`: traces some of a run's steps, for TensorBoard's profile tab."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.runtime import run_paths

_FOLDER = "tensorboard/train"


class Profiler:
    """Traces the steps between two, in the chief.

    Each of them is a graph call of its own in every process, so that the trace
    shows where it begins.

    Args:
        steps: such as `"10:20"`: once 10 steps are done, until 20 are.
        is_chief: whether this process writes the trace.
        model_dir: where the run lives; `None` for nowhere.
        last_step: at which training ends.

    Raises:
        UserError: there are no such steps, or no place to write to.
    """

    def __init__(
        self,
        steps: str | None,
        *,
        is_chief: bool,
        model_dir: str | None,
        last_step: int,
    ) -> None:
        self._steps = range(0)
        self._starts = is_chief
        self._is_tracing = False
        if steps is None:
            return
        self._steps = range(*map(int, steps.split(":")))
        if model_dir is None:
            raise UserError(
                f"profile = {steps!r} needs a run directory to write to: set "
                "model_dir."
            )
        if self._steps.stop > last_step:
            raise UserError(
                f"profile = {steps!r} ends after the run, which has "
                f"{last_step:,} steps. Choose an end of at most {last_step}."
            )
        run_paths.prepare_directory(model_dir, _FOLDER)
        self._path = os.path.join(model_dir, _FOLDER)

    def next_due(self, step: int) -> int | None:
        """The next step at which a graph call has to end."""
        if step >= self._steps.stop:
            return None
        return max(step + 1, self._steps.start)

    def before(self, step: int) -> None:
        """Starts a trace that is due before the next graph call."""
        if not self._starts or step not in self._steps:
            return
        self._starts = False
        try:
            tf.profiler.experimental.start(self._path)
            self._is_tracing = True
        # Training does not depend on it.
        except tf.errors.AlreadyExistsError:
            logging.warning(
                "Nothing is profiled: another profiler is running, perhaps "
                "that of keras.callbacks.TensorBoard."
            )

    @contextlib.contextmanager
    def call(self, step: int) -> Iterator[None]:
        """Marks a graph call in the trace, if there is one."""
        if not self._is_tracing:
            yield
            return
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            yield

    def is_over(self, step: int) -> bool:
        """Whether the trace is to end; first wait for the device."""
        return self._is_tracing and step >= self._steps.stop

    def stop(self) -> None:
        """Ends and writes a trace, if there is one."""
        if not self._is_tracing:
            return
        self._is_tracing = False
        try:
            tf.profiler.experimental.stop()
        except (tf.errors.OpError, OSError) as error:
            logging.warning("The profile could not be written: %s", error)
        else:
            logging.warning("A profile is in %s.", self._path)
