"""`Logger`: the base class of callbacks that record values somewhere."""

import abc
import concurrent.futures
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from absl import logging

from trainer.checkpoint.contents import LOGGED
from trainer.errors import UserError
from trainer.loop.callback import Callback
from trainer.loop.logged import Kind, Media, Value
from trainer.runtime import schema

_STATE = schema.record({"waiting": LOGGED}, {"lost": schema.Count})
# What waits is in every checkpoint: older entries are given up.
_MOST_WAITING = 1000
# Between two tries to write, in seconds; the pause doubles each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """Some values of a split at a step.

    Attributes:
        step: the optimizer steps that were done.
        split: `"train"`, `"eval"` or another evaluation set.
        values: name to number or `Media`.
        final: whether they exist only because the run ended at this step.
    """

    step: int
    split: str
    values: Mapping[str, Value]
    final: bool = False


class Logger(Callback, abc.ABC):
    """A callback that records what a run logs, in files or with a service.

    A logger implements `write` and `take_back`. This class does the rest. Only
    the chief writes, and only in a run that has a directory. A failure to
    write is a warning, and the entries are written later. Steps that will be
    repeated are taken back, so that each is recorded once.

    After a failure, writing is tried again after pauses that grow to a minute,
    and once more when the run ends. Meanwhile, the newest 1,000 entries are
    kept, also in checkpoints; older ones are lost.

    Attributes:
        takes: the kinds that it records; it skips all others.
        refused: the exceptions of `write` after which it is tried again.
        in_background: whether a thread calls `write` while training continues,
            because it is slow, for example over a network. A checkpoint and
            the end of the run wait for it.
        may_lose: whether a run may finish although entries were not written.
    """

    only_watches = True
    single = True
    takes: ClassVar[frozenset[Kind]] = frozenset({"scalar"})
    refused: tuple[type[Exception], ...] = (OSError,)
    in_background: ClassVar[bool] = False
    may_lose: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Entry] = []
        # How many entries were given up, and why nothing can be written now.
        self._lost = 0
        self._refusal: Exception | None = None
        self._pause, self._next_try = 0.0, 0.0
        self._thread: concurrent.futures.Executor | None = None
        # What the thread writes, and what it refuses.
        self._writing: concurrent.futures.Future[list[Entry]] | None = None
        # Between a restore and `on_train_begin`: what is in the way is not yet
        # taken back, and another checkpoint may be tried.
        self._is_restored = False

    @abc.abstractmethod
    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries, in order; they are safe when it returns.

        It is called between two graph calls.

        Raises:
            Exception: one of `refused`. It is called again, with these entries
                and newer ones.
        """

    @abc.abstractmethod
    def take_back(self, step: int, *, final: bool) -> None:
        """Removes entries of an earlier attempt about steps to come.

        Args:
            step: the last step that stays.
            final: whether to remove `final` entries, because the run continues.
        """

    @property
    def where(self) -> str:
        """The name of its output, for warnings."""
        return f"{type(self).__name__}'s files"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        run = self.run
        return run.model_dir is not None and run.plugin.is_chief

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes back the steps that will be repeated."""
        self._is_restored = False
        last, final = self.run.fired_step, not self.run.is_ending
        # An attempt that came to the end has said what was lost.
        if self.run.is_ending:
            self._lost = 0
        # What was refused is not written, but may be of such steps.
        self._waiting = [
            one
            for one in self._waiting
            if one.step <= last and not (final and one.final)
        ]
        if self.writes:
            self.take_back(last, final=final)
            self.flush()

    def on_done(self) -> None:
        """Writes what could not be written before.

        Raises:
            UserError: some of the run's logs are nowhere.
        """
        self.flush(wait=True, now=True)
        missing = len(self._waiting) + self._lost
        if self.may_lose or not missing:
            return
        if not self._waiting:
            raise UserError(
                f"{self.where} could not be written for a long time, and "
                f"{missing} logs are lost. Run the same command again to "
                "finish the run without them."
            )
        held = "best.json" if self.following else "the last checkpoint"
        lost = f"{self._lost} older logs are lost. " if self._lost else ""
        raise UserError(
            f"{self.where} cannot be written: {self._refusal}. "
            f"{len(self._waiting)} logs wait in {held}. {lost}"
            "Make it writable, and run the same command again."
        )

    def on_roll_back(self, step: int) -> None:
        """Takes back the steps that will be repeated."""
        Logger.on_train_begin(self)

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Writes the scalars of a split."""
        self._add(Entry(step, split, logs))

    def on_final_log(
        self, step: int, split: str, logs: dict[str, float]
    ) -> None:
        """Writes scalars with a mark, which a continued run drops."""
        self._add(Entry(step, split, logs, final=True))

    def on_values(
        self, step: int, split: str, values: Mapping[str, Value]
    ) -> None:
        """Writes what `trainer.log` was given, beside the logs that are due.

        Args:
            step: the optimizer steps that were done.
            split: `"train"`, `"eval"` or another evaluation set.
            values: name to number or `Media`.
        """
        self._add(Entry(step, split, values))

    def _add(self, entry: Entry) -> None:
        taken = {
            name: value
            for name, value in entry.values.items()
            if kind_of(value) in self.takes
        }
        if self.writes and taken:
            self._waiting.append(dataclasses.replace(entry, values=taken))
            self.flush()

    def flush(self, *, wait: bool = False, now: bool = False) -> None:
        """Writes what is waiting; a refusal is a warning.

        Args:
            wait: until it is written, also if a thread writes it.
            now: also if the pause after a refusal is not over.
        """
        if not self.writes or self._is_restored:
            return
        if self._writing is not None and (wait or self._writing.done()):
            writing, self._writing = self._writing, None
            self._keep(writing.result() + self._waiting)
        if self._writing is not None or not self._waiting:
            return
        if not now and time.monotonic() < self._next_try:
            self._keep(self._waiting)
            return
        entries, self._waiting = self._waiting, []
        if wait or not self.in_background:
            self._keep(self._write(entries))
            return
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._writing = self._thread.submit(self._write, entries)

    def _keep(self, entries: list[Entry]) -> None:
        """Lets the newest entries wait."""
        self._waiting = entries[-_MOST_WAITING:]
        self._lost += len(entries) - len(self._waiting)

    def _write(self, entries: list[Entry]) -> list[Entry]:
        """Writes entries, and returns those that were refused."""
        try:
            self.write(entries)
        except self.refused as error:
            if self._refusal is None:
                logging.warning(
                    "%s cannot be written; logs are kept for later. %s",
                    self.where,
                    error,
                )
            self._refusal = error
            self._pause = min(
                max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE
            )
            self._next_try = time.monotonic() + self._pause
            return entries
        if self._refusal is not None:
            logging.warning("%s can be written again.", self.where)
        self._refusal, self._pause, self._next_try = None, 0.0, 0.0
        return []

    def state(self) -> dict[str, Any]:
        """Writes what it can; the numbers of the rest.

        What is in a checkpoint has been written by then, or is in it.
        """
        self.flush(wait=True)
        numbers = [
            {
                name: v
                for name, v in one.values.items()
                if kind_of(v) == "scalar"
            }
            for one in self._waiting
        ]
        return {
            "waiting": [
                vars(one) | {"values": values}
                for one, values in zip(self._waiting, numbers, strict=True)
                if values
            ],
            "lost": self._lost,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        _STATE(state, type(self).__name__)
        self._waiting = [Entry(**one) for one in state["waiting"]]
        self._lost = state.get("lost", 0)
        # An evaluator repeats nothing.
        self._is_restored = not self.following

    def close(self) -> None:
        """Writes what could not be written before."""
        self.flush(wait=True, now=True)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def kind_of(value: Value) -> Kind:
    """Returns the kind of a value."""
    return value.kind if isinstance(value, Media) else "scalar"
