"""`Logger`: the base class of callbacks that record values somewhere."""

import abc
import concurrent.futures
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from absl import logging

from trainer.loop.callback import Callback
from trainer.loop.logged import Kind, Media, Value
from trainer.runtime import schema
from trainer.runtime.schema import Misfit

_STATE = schema.record({}, {"waiting": list[str]})
_KEYS = {"step": schema.Count, "split": schema.Word}
_LINE = schema.record(_KEYS)
_VALUES = schema.Check(dict[str, schema.Number | None])


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

    def as_json(self) -> str:
        """Its numbers as a line of JSON; NaN and infinities become `null`."""
        values = {
            name: float(value) if math.isfinite(value) else None
            for name, value in self.values.items()
            if not isinstance(value, Media)
        }
        key = {"step": int(self.step), "split": self.split}
        if self.final:
            key["final"] = True
        # Twice: first so that they come first, last so that they win over
        # metrics of these names.
        return json.dumps(key | values | key, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, line: str, name: str) -> Self:
        """Reads what `as_json` has made.

        Raises:
            ValueError: it contains anything else.
        """
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise Misfit(f"{name} is not JSON") from None
        _LINE(found, name)
        # Only a boolean is the mark; a metric of the name is a number.
        final = found.get("final") is True
        values = {
            key: v
            for key, v in found.items()
            if key not in _KEYS and not (final and key == "final")
        }
        _VALUES(values, name)
        nothing = math.nan  # This is written as null.
        return cls(
            found["step"],
            found["split"],
            {key: nothing if v is None else v for key, v in values.items()},
            final,
        )


class Logger(Callback, abc.ABC):
    """A callback that records what a run logs, in files or with a service.

    A logger implements `write` and `take_back`. This class sees to the rest:
    only the chief writes, and only in a run that has a directory; what could
    not be written is a warning, and is written later; steps that will be
    repeated are taken back, and are held once.

    Attributes:
        takes: the kinds that it records; all others are left out.
        refused: the exceptions of `write` that mean: not now.
        in_background: whether `write` takes so long, as over a network, that a
            thread calls it while training goes on. A checkpoint and the end
            of the run wait for it.
    """

    only_watches = True
    single = True
    takes: ClassVar[frozenset[Kind]] = frozenset({"scalar"})
    refused: tuple[type[Exception], ...] = (OSError,)
    in_background: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Entry] = []
        self._thread: concurrent.futures.Executor | None = None
        self._under_way: concurrent.futures.Future[None] | None = None
        self._handed: list[Entry] = []
        # Between a restore and `on_train_begin`: what is in the way is not yet
        # taken back, and another checkpoint may be tried.
        self._is_restored = False

    @abc.abstractmethod
    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries, in order; they are safe when it returns.

        It is called between two graph calls.

        Raises:
            Exception: one of `refused`: it is called again, with these and
                what has come since.
        """

    @abc.abstractmethod
    def take_back(self, step: int, splits: Sequence[str]) -> None:
        """Forgets what an earlier attempt has written of steps to come.

        Args:
            step: the last step that stays.
            splits: those whose entries of this very step go, too.
        """

    @property
    def where(self) -> str:
        """What it writes, for warnings."""
        return f"{type(self).__name__}'s files"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        run = self.run
        return run.model_dir is not None and run.plugin.is_chief

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes back the steps that will be repeated."""
        self._is_restored = False
        if self.writes:
            self.take_back(self.run.fired_step, self.run.taken_back)
            self.flush()

    def on_roll_back(self, step: int) -> None:
        """Takes back the steps that will be repeated."""
        self._is_restored = False
        last = self.run.fired_step
        # Entries that were refused are not written, but may be of such steps.
        self._waiting = [one for one in self._waiting if one.step <= last]
        if self.writes:
            self.take_back(last, self.run.taken_back)
            self.flush()

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Writes the scalars of a split."""
        self._add(Entry(step, split, logs))

    def on_final_log(
        self, step: int, split: str, logs: dict[str, float]
    ) -> None:
        """Writes scalars with a mark, which a run that goes on drops."""
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

    def flush(self, *, wait: bool = False) -> None:
        """Writes what is waiting; a refusal is a warning.

        Args:
            wait: until it is written, also if a thread writes it.
        """
        if not self.writes or self._is_restored:
            return
        if self._is_over(wait=wait) and self._waiting:
            self._handed, self._waiting = self._waiting, []
            self._under_way = self._start(self._handed)
            self._is_over(wait=wait or not self.in_background)

    def _start(self, entries: list[Entry]) -> "concurrent.futures.Future[None]":
        if self.in_background:
            if self._thread is None:
                self._thread = concurrent.futures.ThreadPoolExecutor(1)
            return self._thread.submit(self.write, entries)
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        try:
            self.write(entries)
        except self.refused as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _is_over(self, *, wait: bool) -> bool:
        """Whether no write is under way; takes back what was refused."""
        if self._under_way is None:
            return True
        if not wait and not self._under_way.done():
            return False
        done, self._under_way = self._under_way, None
        try:
            done.result()
        except self.refused as error:
            self._waiting = self._handed + self._waiting
            logging.warning(
                "%s cannot be written; %d entries are kept for later. %s",
                self.where,
                len(self._waiting),
                error,
            )
        return True

    def state(self) -> dict[str, Any]:
        """Writes what it can; the numbers of the rest.

        What is in a checkpoint has been written by then, or is in it.
        """
        self.flush(wait=True)
        waiting = [
            one.as_json()
            for one in self._waiting
            if any(kind_of(value) == "scalar" for value in one.values.values())
        ]
        return {"waiting": waiting} if waiting else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state`."""
        name = type(self).__name__
        _STATE(state, name)
        # Parsed, so that no arbitrary text of a checkpoint gets into a file.
        self._waiting = [
            Entry.from_json(line, f"{name}.waiting")
            for line in state.get("waiting", [])
        ]
        self._is_restored = True

    def close(self) -> None:
        """Writes what could not be written before."""
        self.flush(wait=True)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def kind_of(value: Value) -> Kind:
    """What a value is."""
    return value.kind if isinstance(value, Media) else "scalar"


def missing_kinds(
    callbacks: Sequence[Any], values: Mapping[str, Value]
) -> dict[str, list[str]]:
    """The kinds that no logger takes, with the names of their values."""
    taken = {
        kind
        for one in callbacks
        if isinstance(one, Logger)
        for kind in one.takes
    }
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        if kind_of(value) not in taken:
            found.setdefault(kind_of(value), []).append(name)
    return found
