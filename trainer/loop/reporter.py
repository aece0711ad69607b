"""Evaluates, logs and ends epochs between graph calls, when they are due."""

import contextlib
from collections.abc import (
    Collection,
    Iterable,
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
from trainer.loop.logger import Logger, kind_of
from trainer.loop.run import Run
from trainer.loop.schedule import Ticker
from trainer.step.logs import DATA_WAIT, Interval
from trainer.step.metrics.states import KEPT, TRAINING
from trainer.step.reductions.sums import Sums
from trainer.values.periods import Period
from trainer.values.words import shown


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
        final: values that exist only because the run ends here: no monitor and
            no checkpoint has them.
        intervals: sums since the last log and since the epoch's begin, and
            what metrics keep longer.
        interval_seconds: what the steps since the last log took.
        tickers: when logs and evaluations are due.
        of_epoch: the values of the last epoch that has ended.
        begun_epoch: the last epoch whose `on_epoch_begin` has been called,
            in any attempt.
        left: by split that was due, what its evaluation has left in metrics
            that keep something.
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
        self.eval_steps = eval_steps
        self.logs: dict[str, float] = {}
        self.final: dict[str, float] = {}
        self.of_epoch: dict[str, float] = {}
        self.intervals = {
            name: Interval(run.parts.metrics, name)
            for name in (*TRAINING, KEPT)
        }
        self.interval_seconds = 0.0
        self.begun_epoch: int | None = None
        self.left: dict[str, Any] = {}
        self._run = run
        self._callbacks = callbacks
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
        # The event that is under way, its logs, and what has been measured.
        self._event: tuple[str, dict[str, Any], Collection[str]] = "", {}, ()
        # What some logger takes, or has been found not to.
        self._known_kinds = {"scalar"}.union(
            *(one.takes for one in callbacks.all if isinstance(one, Logger))
        )

    def start(self, step: int) -> None:
        """Starts counting at a step."""
        for ticker in self.tickers.values():
            ticker.start(step)

    def next_step(self, step: int) -> int | None:
        """The first step at which an evaluation is due or an epoch ends."""
        ends = [one.next_step(step) for one in self._evaluations.values()]
        ends.append(self._run.epochs.next_end(step))
        return min((end for end in ends if end is not None), default=None)

    @property
    def sums(self) -> list[Sums | None]:
        """The sums from which a graph call continues."""
        return [self.intervals[name].sums for name in TRAINING]

    def take(self, sums: Sequence[Sums], *, seconds: float) -> None:
        """Takes what a graph call returned: `sums` with its steps added."""
        for name, its in zip(TRAINING, sums, strict=True):
            self.intervals[name].sums = its
        self.interval_seconds += seconds

    def epoch_values(self) -> dict[str, float]:
        """Training values since the epoch's begin."""
        return self.intervals["epoch"].values()

    @property
    def newest(self) -> dict[str, float]:
        """The newest values, those that exist only at the end included."""
        return self.logs | self.final

    # What `trainer.log` is given.

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
        event, logs, measured = self._event
        split = split or self._run.evaluating or "train"
        splits = list(dict.fromkeys(["train", EVAL, *self._evaluations]))
        if split not in splits:
            raise UserError(
                f"trainer.log({name!r}, ...) has split = {shown(split)}. "
                f"Valid: {', '.join(map(repr, splits))}."
            )
        # The numbers of an evaluation are logged as soon as it is over.
        in_eval = event == "eval" and split == self._run.evaluating
        key = name if in_eval else prefix_of(split) + name
        if isinstance(value, float) and (in_eval or event == "epoch"):
            _check_free([key], measured)
            logs[key] = value
            if in_eval:
                return
        self._run.logged.add(self._run.step, split, name, value)
        if isinstance(value, float):
            self.logs[key] = value
            if split == "train":
                self._run.logged.of_epoch[name] = value

    @contextlib.contextmanager
    def _during(
        self, event: str, logs: dict[str, Any], measured: Collection[str] = ()
    ) -> Iterator[None]:
        """Lets `log` add to the logs of an event."""
        self._event = event, logs, measured
        try:
            yield
        finally:
            self._event = "", {}, ()

    def hand_over(self) -> None:
        """Gives loggers what no log has taken."""
        for step, split, values in self._run.logged.take_all():
            for name, value in values.items():
                kind = kind_of(value)
                if kind not in self._known_kinds:
                    self._known_kinds.add(kind)
                    logging.warning(
                        "No logger of this run accepts %s (%s): it is dropped; "
                        "see docs/runs/loggers.md.",
                        kind,
                        name,
                    )
            self._callbacks.call("on_values", step, split, values)

    # What is due.

    def begin_epoch(self, epoch: int) -> None:
        """Calls `on_epoch_begin`; its effect on saved state counts once.

        A run that is resumed within an epoch calls it again, because callbacks
        may have to set up what no checkpoint holds.
        """
        event = "on_epoch_begin"
        if self.begun_epoch != epoch:
            self._run.parts.metrics.reset_kept()
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
        step, epochs = self._run.step, self._run.epochs
        self.final = {}
        due = [s for s, one in self._evaluations.items() if one.is_due(step)]
        epoch = epochs.number(first)
        ends_epoch = epochs.number(step) > epoch
        # A call of `fit` that is stopped within an epoch ends that one there,
        # as in Keras, with what is due at its end.
        if ending and not (ends_epoch or self._evaluates_at_end):
            ends_epoch, end = True, epochs.next_end(step)
            due = [
                split
                for split, one in self._evaluations.items()
                if one.next_step(step) == end
            ]
        at_end = ending and self._evaluates_at_end
        # Evaluation first: if it is interrupted, nothing has been logged, and
        # all of it is due again.
        evaluated = self._evaluate(list(self._evaluations) if at_end else due)
        self.left = {split: self.left[split] for split in due}
        for split in due:
            self._evaluations[split].start(step)
        if self.tickers["log"].due(step):
            due = ["train", *due]
        for split in due:
            self._log(step, split, evaluated, final=False)
        if "train" in due:
            # A log that is only for the end leaves the interval open, so that
            # a longer run logs the values that it would have logged without
            # the earlier end.
            self.intervals["interval"].reset()
            self.interval_seconds = 0.0
        if ending:
            for split in ("train", *evaluated):
                if split not in due:
                    self._log(step, split, evaluated, final=True)
        if ends_epoch:
            newest = all_in_logs(evaluated)
            if self._evaluates_at_end:
                newest = _of_evaluation(self.newest)
            self._end_epoch(epoch, newest, ending=ending)
        self.hand_over()

    def _log(
        self,
        step: int,
        split: str,
        evaluated: Mapping[str, dict[str, float]],
        *,
        final: bool,
    ) -> None:
        """Calls callbacks with a split's values.

        Args:
            step: the optimizer steps that are done.
            split: whose values.
            evaluated: those of evaluations.
            final: whether they are logged only because the run ends here.
        """
        logs = evaluated.get(split) if split != "train" else self._training()
        if not logs:
            return
        newest = names_in_logs(split, logs)
        if split == "train":
            # What was logged at this step is no matter of the end: it is handed
            # over beside.
            own = self._run.logged.take_numbers(step, split, keep=final)
            _check_free(own, logs)
            newest = logs if final else logs | own
            logs = newest | self._run.built.learning_rates() | self._speed()
        if final:
            self.final |= newest
            self._callbacks.call("on_final_log", step, split, logs)
        else:
            self.logs |= newest
            self._callbacks.call("on_log", step, split, logs)

    def _training(self) -> dict[str, float]:
        """The values since the last log."""
        interval = self.intervals["interval"]
        # Only now: reading it waits for the device.
        waited = interval.total(DATA_WAIT)
        self._run.accounts.move(waited, source="step", to="data_wait")
        return interval.values()

    def _speed(self) -> dict[str, float]:
        examples = self.intervals["interval"].examples
        # A clock may not have moved between two very short calls.
        seconds = max(self.interval_seconds, 1e-9)
        return {"examples_per_second": examples / seconds}

    def _end_epoch(
        self, epoch: int, validation: dict[str, float], *, ending: bool
    ) -> None:
        # As `fit` does, with the newest evaluation among the epoch's values.
        values = self.epoch_values() | validation
        # Likewise, training continues with what that has left in metrics.
        for kept in self.left.values():
            self._run.parts.metrics.states[KEPT] = kept
        measured = tuple(values)
        values = self._run.logged.of_epoch | values
        self.intervals["epoch"].reset()
        with self._during("epoch", values, measured=measured):
            self._callbacks.call("on_epoch_end", epoch, values)
        self.of_epoch = values
        # A number that was logged there is this epoch's, and not the next's.
        self._run.logged.of_epoch = {}
        if not ending:
            self.begin_epoch(epoch + 1)

    # Evaluation.

    def _evaluate(self, splits: Sequence[str]) -> dict[str, dict[str, float]]:
        try:
            return {split: self.evaluate(split) for split in splits}
        except Interrupted:
            for split in splits:
                self._run.logged.forget(split)
            raise

    def evaluate(self, split: str) -> dict[str, float]:
        """Measures a split, and calls `on_test_*` for it.

        Raises:
            Interrupted: the run has to leave.
        """
        self._run.evaluating = split
        try:
            # What callbacks log before there are values is added to these.
            early: dict[str, Any] = {}
            with self._during("eval", early):
                self._callbacks.call("on_test_begin", {})
            with self._run.accounts.phase("evaluation"):
                values = self._measure(split)
            _check_free(early, values)
            measured = tuple(values)
            values |= early
            with self._during("eval", values, measured=measured):
                # The very values, as in Keras: what a callback adds is kept.
                self._callbacks.call("on_test_end", values)
            return numbers_of("on_test_end", values)
        finally:
            self._run.evaluating = None

    def evaluate_again(self) -> None:
        """Measures a run that has nothing left to train, for what it returns.

        Nothing is logged: everything that was due has been.

        Raises:
            Interrupted: the run has to leave.
        """
        for split in self._evaluations:
            self.final |= names_in_logs(split, self._measure(split))

    def _measure(self, split: str) -> dict[str, float]:
        run = self._run

        def has_to_leave() -> bool:
            # An evaluator beside training has no loop that could leave.
            return run.steps is not None and run.agree().restart

        metrics = run.parts.metrics
        before = {**metrics.states.get(KEPT, {})}
        try:
            return run.evaluator(run.batches(split))(
                self.eval_steps,
                event=self._callbacks.batch_events,
                execution=self._callbacks.execution,
                has_to_leave=has_to_leave,
            )
        finally:
            # The values of training are still to be read.
            self.left[split] = metrics.states.get(KEPT, {})
            metrics.states[KEPT] = before


def _check_free(names: Iterable[str], measured: Collection[str]) -> None:
    """Checks that nothing has been logged under a name that is measured.

    Raises:
        UserError: something has.
    """
    for name in names:
        if name in measured:
            raise UserError(
                f"trainer.log({name!r}, ...) has the name of a value that the "
                "run measures itself. Choose another one."
            )


def _of_evaluation(logs: Mapping[str, float]) -> dict[str, float]:
    return {k: v for k, v in logs.items() if k.startswith("val_")}
