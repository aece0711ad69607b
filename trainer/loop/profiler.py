"""`profile`: traces some of a run's steps, for TensorBoard's profile tab."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Annotated, TypeAlias

import tensorflow as tf
from absl import logging
from annotated_types import Predicate
from typing_extensions import Doc

from trainer.errors import UserError
from trainer.runtime import atomic_files
from trainer.runtime.local_files import is_local
from trainer.strategy.plugin import StrategyPlugin

# A file of this name in the run directory starts a profile; it may hold the
# number of steps.
TOUCH_FILE = "PROFILE"
_STEPS = 10
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})")
# How often the file is looked for, in seconds: an object store takes longer.
_EVERY, _EVERY_REMOTE = 1.0, 30.0


def _is_range(value: str) -> bool:
    match = _RANGE.fullmatch(value)
    return match is not None and int(match[1]) < int(match[2])


Steps: TypeAlias = Annotated[
    str,
    Predicate(_is_range),
    Doc("two numbers of steps, such as '10:20', the second one greater"),
]


class Profiler:
    """Traces the steps between two, and whenever a file asks for it.

    Each step of a stated range is a graph call of its own, so that the trace
    shows where it begins; a file's trace covers whole graph calls, so that
    processes need not agree on it.

    Args:
        steps: such as `"10:20"`: once 10 steps are done, until 20 are.
        workers: numbers of workers, separated by commas, or `"all"`; `None`
            is worker 0.
        plugin: the strategy.
        model_dir: where the run lives; `None` for nowhere.
        last_step: at which training ends.

    Raises:
        UserError: there is no such step or worker, or no place to write to.
    """

    def __init__(
        self,
        steps: str | None,
        workers: str | None,
        *,
        plugin: StrategyPlugin,
        model_dir: str | None,
        last_step: int,
    ) -> None:
        self._range: range | None = None
        self._model_dir = model_dir
        number, count = _worker(plugin)
        self._is_one = number in _numbers(workers, count)
        self._removes = number == 0
        self._name = (
            "tensorboard/train"
            if number == 0
            else f"tensorboard/worker_{number}"
        )
        self._stop_at: int | None = None
        self._looked = 0.0
        self._seen: int | None = None
        if steps is not None:
            self._range = range(*map(int, steps.split(":")))
            self._check(steps, last_step)
        elif workers is not None:
            raise UserError(
                f"profile_workers = {workers!r} says whose steps are profiled, "
                "but not which: set profile, such as '10:20'."
            )

    def _check(self, steps: str, last_step: int) -> None:
        assert self._range is not None
        if self._model_dir is None:
            raise UserError(
                f"profile = {steps!r} needs a run directory to write to: set "
                "model_dir."
            )
        if self._range.stop > last_step:
            raise UserError(
                f"profile = {steps!r} ends after the run, which has "
                f"{last_step:,} steps. Choose an end of at most {last_step}."
            )
        atomic_files.prepare_directory(self._model_dir, self._name)

    def next_due(self, step: int) -> int | None:
        """The next step at which a graph call has to end."""
        if self._range is None or step >= self._range.stop:
            return None
        return max(step + 1, self._range.start)

    def before(self, step: int) -> None:
        """Starts a trace that is due before the next graph call."""
        if not self._is_one or self._stop_at is not None:
            return
        if self._range is not None and step in self._range:
            self._start(step, self._range.stop)
        elif (count := self._asked_for()) is not None:
            self._start(step, step + count)

    @contextlib.contextmanager
    def call(self, step: int) -> Iterator[None]:
        """Marks a graph call in the trace, if there is one."""
        if self._stop_at is None:
            yield
            return
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            yield

    def is_over(self, step: int) -> bool:
        """Whether the trace is to end; first wait for the device."""
        return self._stop_at is not None and step >= self._stop_at

    def stop(self) -> None:
        """Ends and writes a trace, if there is one."""
        if self._stop_at is None:
            return
        self._stop_at = None
        try:
            tf.profiler.experimental.stop()
        except (tf.errors.OpError, OSError) as error:
            logging.warning("The profile could not be written: %s", error)
        else:
            logging.warning("A profile is in %s.", self._path)
        if self._removes and self._seen is not None and self._model_dir:
            touched = os.path.join(self._model_dir, TOUCH_FILE)
            atomic_files.remove_if_possible(touched)

    @property
    def _path(self) -> str:
        return os.path.join(self._model_dir or "", self._name)

    def _start(self, step: int, stop: int) -> None:
        assert self._model_dir is not None
        try:
            atomic_files.refuse_links(self._model_dir, self._name)
            tf.profiler.experimental.start(self._path)
        except UserError as error:
            why = str(error)
        except tf.errors.AlreadyExistsError:
            why = (
                "another profiler is running, perhaps that of "
                "keras.callbacks.TensorBoard."
            )
        else:
            self._stop_at = stop
            return
        # Training does not depend on it.
        logging.warning("Nothing is profiled at step %d: %s", step, why)

    def _asked_for(self) -> int | None:
        """How many steps a new file asks for."""
        if self._model_dir is None:
            return None
        every = _EVERY if is_local(self._model_dir) else _EVERY_REMOTE
        now = time.monotonic()
        if now - self._looked < every:
            return None
        self._looked = now
        path = os.path.join(self._model_dir, TOUCH_FILE)
        try:
            stamp = int(tf.io.gfile.stat(path).mtime_nsec)
            # One that cannot be removed is not obeyed twice.
            if stamp == self._seen:
                return None
            self._seen = stamp
            text = atomic_files.read(path).decode(errors="replace").strip()
        except (tf.errors.OpError, OSError):
            return None
        if text.isdecimal() and 0 < int(text) < 10**6:
            return int(text)
        if text:
            logging.warning(
                "%s holds %.40r, which is not a number of steps: %d are "
                "profiled.",
                path,
                text,
                _STEPS,
            )
        return _STEPS


def _worker(plugin: StrategyPlugin) -> tuple[int, int]:
    """This process's number among those that train, and how many there are."""
    resolver = getattr(plugin.strategy, "cluster_resolver", None)
    if plugin.is_alone or resolver is None or not resolver.task_type:
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    chiefs, workers = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
    number = resolver.task_id + chiefs * (resolver.task_type == "worker")
    return number, chiefs + workers


def _numbers(workers: str | None, count: int) -> set[int]:
    """Reads `"0,2"` or `"all"`.

    Raises:
        UserError: there is no such worker.
    """
    if workers is None:
        return {0}
    if workers == "all":
        return set(range(count))
    parts = [part.strip() for part in workers.split(",")]
    valid = [str(number) for number in range(count)]
    for part in parts:
        if part not in valid:
            few = ", ".join(valid) if count <= 8 else f"0 to {count - 1}"
            raise UserError(
                f"profile_workers = {workers!r}: there is no worker {part!r} "
                f"whose steps this process could profile. Valid: {few}, 'all'."
            )
    return set(map(int, parts))
