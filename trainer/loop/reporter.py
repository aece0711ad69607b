"""Evaluates, logs and ends epochs between graph calls, when they are due."""

import contextlib
import time
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from absl import logging

from trainer.errors import UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.evaluation_sets import (
    EVAL,
    all_in_logs,
    names_in_logs,
    prefix_of,
)
from trainer.loop.evaluator import Interrupted
from trainer.loop.logged import Value, numbers_of
from trainer.loop.logger import missing_kinds
from trainer.loop.run import Run
from trainer.loop.schedule import Ticker
from trainer.step.logs import Interval
from trainer.step.metrics.states import TRAINING
from trainer.step.reductions.sums import Sums
from trainer.values.periods import Period
from trainer.values.words import shown

_TRAINING = "training"  # Among the times of a checkpoint.


class Reporter:
    """Measures what is due, and calls the callbacks for it.

    Args:
        run: whose steps are reported.
        callbacks: are called.
        log: the period of training logs.
        evaluations: the periods of evaluations, by split.
        eval_steps: batches in an evaluation; `None` means all.
        evaluates_at_end: whether to evaluate at the end if it is not due.

    Attributes:
        eval_steps: as given.
        logs: the newest training values, and evaluation values as `val_*`.
        intervals: sums since the last log and since the epoch's begin.
        interval_seconds: what the steps since the last log took.
        tickers: when logs and evaluations are due.
        begun_epoch: the last epoch whose `on_epoch_begin` has been called,
            in any attempt.
        final: values that exist only because the run ends here: no monitor and
            no checkpoint has them.
        final_splits: those whose logs of the present step exist only because
            the run ended here; one that goes on takes them back.
    """

    def __init__(
        self,
        run: Run,
        callbacks: CallbackList,
        *,
        log: Period,
        evaluations: Mapping[str, Period],
        eval_steps: int | None,
        evaluates_at_end: bool = True,
    ) -> None:
        self.logs: dict[str, float] = {}
        self.logged = run.logged
        self.intervals = {
            name: Interval(run.parts.metrics, name) for name in TRAINING
        }
        self.interval_seconds = 0.0
        self.begun_epoch: int | None = None
        self.final: dict[str, float] = {}
        self.final_splits: list[str] = []
        self._run = run
        self._callbacks = callbacks
        self.eval_steps = eval_steps
        self._epochs = run.epochs
        self._evaluates_at_end = evaluates_at_end
        agree = run.plugin.any_process
        self._evaluations = {
            split: Ticker(period, agree)
            for split, period in evaluations.items()
        }
        self.tickers = {"log": Ticker(log, agree)} | {
            # A set may be named "log".
            split if split == EVAL else f"{EVAL}/{split}": ticker
            for split, ticker in self._evaluations.items()
        }
        run.take_value = self.log
        # Those of an event that is under way, and what has been measured.
        self._open_logs: tuple[str, dict[str, Any], Collection[str]] | None = (
            None
        )
        self._told: set[str] = set()
        self._trained = 0.0
        self._since: float | None = None

    @property
    def training_seconds(self) -> float:
        """How long the run has trained, evaluated and saved, in all attempts.

        Without starting up, and without what a killed attempt lost.
        """
        now = time.monotonic()
        return self._trained + (
            0.0 if self._since is None else now - self._since
        )

    def end(self) -> None:
        """Stops the clock of `training_seconds`."""
        self._trained, self._since = self.training_seconds, None

    def start(self, step: int) -> None:
        """Starts counting at a step."""
        if self._since is None:
            self._since = time.monotonic()
        for ticker in self.tickers.values():
            ticker.start(step)

    def times(self) -> dict[str, Any]:
        """What a checkpoint holds of the clock, as JSON values."""
        return {
            "interval_seconds": self.interval_seconds,
            "elapsed": {
                **{n: t.elapsed for n, t in self.tickers.items()},
                _TRAINING: self.training_seconds,
            },
        }

    def load_times(self, times: Mapping[str, Any]) -> None:
        """Restores what `times` returned in another attempt."""
        self.interval_seconds = times["interval_seconds"]
        # A run that goes back to a checkpoint has spent the time since.
        missing = times["elapsed"].get(_TRAINING, 0.0) - self.training_seconds
        self._trained += max(missing, 0.0)
        for name, ticker in self.tickers.items():
            ticker.carry(times["elapsed"].get(name, 0.0))

    def next_step(self, step: int) -> int | None:
        """The first step at which an evaluation is due or an epoch ends."""
        ends = [one.next_step(step) for one in self._evaluations.values()]
        ends.append(self._epochs.next_end(step))
        return min((end for end in ends if end is not None), default=None)

    def epoch_of(self, step: int) -> int:
        """How many epochs are complete after a step."""
        return self._epochs.number(step)

    @property
    def sums(self) -> list[Sums | None]:
        """What a graph call goes on from."""
        return [one.sums for one in self.intervals.values()]

    def take(self, sums: Sequence[Sums], *, seconds: float) -> None:
        """Takes what a graph call returned: `sums` with its steps added."""
        for interval, its in zip(self.intervals.values(), sums, strict=True):
            interval.sums = its
        self.interval_seconds += seconds

    def epoch_values(self) -> dict[str, float]:
        """Training values since the epoch's begin."""
        return self.intervals["epoch"].values()

    def log(self, name: str, value: Value, split: str | None) -> None:
        """Takes a value of `trainer.log`, outside of a step.

        Args:
            name: what it is logged under.
            value: a number, or media.
            split: `None` is the one that is being evaluated, and else
                `"train"`.

        Raises:
            UserError: the run itself has measured a value of this name, or
                there is no such split.
        """
        event, logs, measured = self._open_logs or ("", {}, ())
        split = split or self._run.evaluating or "train"
        splits = list(dict.fromkeys(["train", EVAL, *self._evaluations]))
        if split not in splits:
            raise UserError(
                f"trainer.log({name!r}, ...) has split = {shown(split)}. "
                f"Valid: {', '.join(map(repr, splits))}."
            )
        is_number = isinstance(value, float)
        if event == "eval" and split == self._run.evaluating and is_number:
            # These are logged as soon as the event is over.
            if name in measured:
                raise _taken(name)
            logs[name] = value
            return
        key = prefix_of(split) + name
        if event == "epoch" and is_number and key in measured:
            raise _taken(name)
        self.logged.add(self._run.step, split, name, value)
        if not isinstance(value, float):
            return
        self.logs[key] = value
        if split == "train":
            self.logged.of_epoch[name] = value
        if event == "epoch":
            logs[key] = value

    @contextlib.contextmanager
    def _opened(
        self, event: str, logs: dict[str, Any], measured: Collection[str] = ()
    ) -> Iterator[None]:
        """Lets `log` add to the logs of an event."""
        self._open_logs = event, logs, measured
        try:
            yield
        finally:
            self._open_logs = None

    def hand_over(self) -> None:
        """Gives loggers what no log has taken."""
        for step, split, values in self.logged.take_all():
            missing = missing_kinds(self._callbacks.all, values)
            for kind, names in missing.items():
                # Numbers are at least in what `train` returns.
                if kind != "scalar" and kind not in self._told:
                    self._told.add(kind)
                    logging.warning(
                        "No logger of this run takes what is logged as %s "
                        "(%s): it is dropped. docs/loggers.md says which do.",
                        kind,
                        ", ".join(names),
                    )
            self._callbacks.call("on_values", step, split, values)

    def begin_epoch(self, epoch: int) -> None:
        """Calls `on_epoch_begin`; its effect on saved state counts once.

        A run that is resumed within an epoch calls it again, because callbacks
        may have to set up what no checkpoint holds.
        """
        event = "on_epoch_begin"
        if self.begun_epoch != epoch:
            self._callbacks.call(event, epoch, {})
            self.begun_epoch = epoch
        elif self._callbacks.have(event):
            with self._run.state.unchanged():
                self._callbacks.repeat(event, epoch, {})

    def fire(self, first: int, *, ending: bool) -> None:
        """Evaluation, logs and the epoch's end, if due.

        Args:
            first: the step before the last graph call.
            ending: whether no further step is wanted.

        Raises:
            Interrupted: the evaluation was abandoned because the run has to
                leave; it is due again.
        """
        step = self._run.step
        self.final, self.final_splits = {}, []
        # Evaluation first: if it is interrupted, nothing has been logged, and
        # all of it is due again.
        due = [s for s, one in self._evaluations.items() if one.due(step)]
        epoch = self.epoch_of(first)
        ends_epoch = self.epoch_of(step) > epoch
        # A call of `fit` that is stopped within an epoch ends that one there,
        # as in Keras, with what is due at its end.
        if ending and not (ends_epoch or self._evaluates_at_end):
            ends_epoch, end = True, self._epochs.next_end(step)
            due = [
                split
                for split, one in self._evaluations.items()
                if one.next_step(step) == end
            ]
        at_end = ending and self._evaluates_at_end
        evaluated = self._evaluate(list(self._evaluations) if at_end else due)
        log_due = self.tickers["log"].due(step)
        if log_due:
            self._log_training(step, final=False)
        for split in due:
            self._log_evaluation(step, split, evaluated[split], final=False)
        if log_due:
            # A log that is only for the end leaves the interval open, so that
            # a longer run logs the values that it would have logged without
            # the earlier end.
            self.intervals["interval"].reset()
            self.interval_seconds = 0.0
        if ending:
            self._log_end(step, evaluated, logged=(["train"] * log_due) + due)
        if ends_epoch:
            newest = all_in_logs(evaluated)
            if self._evaluates_at_end:
                newest = _of_evaluation(self.newest)
            self._end_epoch(epoch, newest, ending=ending)
        self.hand_over()

    def _log_end(
        self,
        step: int,
        evaluated: Mapping[str, dict[str, float]],
        *,
        logged: Collection[str],
    ) -> None:
        """Logs what was not due, and shows it where it is not kept."""
        self.final_splits = [
            split for split in ("train", *evaluated) if split not in logged
        ]
        for split in self.final_splits:
            if split == "train":
                self._log_training(step, final=True)
            else:
                self._log_evaluation(step, split, evaluated[split], final=True)

    @property
    def newest(self) -> dict[str, float]:
        """The newest values, those that exist only at the end included."""
        return self.logs | self.final

    def evaluate_again(self) -> None:
        """Measures a run that has nothing left to train.

        Nothing is logged: everything that was due has been.
        """
        for split in self._evaluations:
            known = any(self._is_of(split, name) for name in self.logs)
            if split in self.final_splits or not known:
                values = self._measure(split)
                self.final |= names_in_logs(split, values)

    def _is_of(self, split: str, name: str) -> bool:
        """Whether a name in the logs is that of a set's value."""
        # "val_rare/loss" begins with "val_", too.
        others = (one for one in self._evaluations if one not in (split, EVAL))
        return name.startswith(prefix_of(split)) and not (
            split == EVAL and name.startswith(tuple(map(prefix_of, others)))
        )

    def forget_evaluation(self) -> None:
        """Lets `evaluate_again` measure once more."""
        self.logs = {
            name: value
            for name, value in self.logs.items()
            if not name.startswith("val_")
        }

    def evaluate(self, split: str) -> dict[str, float]:
        """Measures a split, and calls `on_test_*` for it.

        Raises:
            Interrupted: the run has to leave.
        """
        self._run.evaluating = split
        try:
            return self._evaluate_one(split)
        finally:
            self._run.evaluating = None

    def _evaluate(self, splits: Sequence[str]) -> dict[str, dict[str, float]]:
        found = {}
        try:
            for split in splits:
                found[split] = self.evaluate(split)
        except Interrupted:
            for split in splits:
                self._evaluations[split].call_back()
                self.logged.forget(split)
            raise
        return found

    def _evaluate_one(self, split: str) -> dict[str, float]:
        # What callbacks log before there are values is added to these.
        early: dict[str, Any] = {}
        with self._opened("eval", early):
            self._callbacks.call("on_test_begin", {})
        with self._run.accounts.phase("evaluation"):
            values = self._measure(split)
        for name in early:
            if name in values:
                raise _taken(name)
        with self._opened("eval", values, measured=tuple(values)):
            values |= early
            # The very values, as in Keras: what a callback adds is kept.
            self._callbacks.call("on_test_end", values)
        return numbers_of("on_test_end", values)

    def _measure(self, split: str) -> dict[str, float]:
        run = self._run
        return run.evaluator(run.batches(split))(
            self.eval_steps,
            event=self._callbacks.batch_events,
            has_to_leave=self._has_to_leave,
        )

    def _has_to_leave(self) -> bool:
        """Whether the evaluation that is under way should be abandoned."""
        # An evaluator beside training has no loop that could leave.
        if self._run.steps is None:
            return False
        return self._run.control.agree(self._run.plugin).restart

    def _log_training(self, step: int, *, final: bool) -> None:
        interval = self.intervals["interval"]
        values = interval.values()
        own = self.logged.take_numbers(step, "train", final=final)
        for name in own:
            if name in values:
                raise _taken(name)
        logs = {
            **values,
            **own,
            **self._run.learning_rates(),
            "examples_per_second": interval.examples
            # A clock may not have moved between two very short calls.
            / max(self.interval_seconds, 1e-9),
        }
        self._log(step, "train", logs, newest=values | own, final=final)

    def _log_evaluation(
        self, step: int, split: str, values: dict[str, float], *, final: bool
    ) -> None:
        if values:
            newest = names_in_logs(split, values)
            self._log(step, split, values, newest=newest, final=final)

    def _log(
        self,
        step: int,
        split: str,
        logs: dict[str, float],
        *,
        newest: dict[str, float],
        final: bool,
    ) -> None:
        if not final:
            self.logs |= newest
            self._callbacks.call("on_log", step, split, logs)
            return
        self.final |= newest
        self._callbacks.call("on_final_log", step, split, logs)

    def _end_epoch(
        self, epoch: int, validation: dict[str, float], *, ending: bool
    ) -> None:
        # As `fit` does, with the newest evaluation among the epoch's values.
        values = self.epoch_values() | validation
        measured = tuple(values)
        values = self.logged.of_epoch | values
        self.intervals["epoch"].reset()
        self.logged.of_epoch = {}
        with self._opened("epoch", values, measured=measured):
            self._callbacks.call("on_epoch_end", epoch, values)
        # A number that was logged there is this epoch's, and not the next's.
        self.logged.of_epoch = {}
        if not ending:
            self.begin_epoch(epoch + 1)


def _taken(name: str) -> UserError:
    return UserError(
        f"trainer.log({name!r}, ...) has the name of a value that the run "
        "measures itself. Choose another one."
    )


def _of_evaluation(logs: Mapping[str, float]) -> dict[str, float]:
    return {k: v for k, v in logs.items() if k.startswith("val_")}
