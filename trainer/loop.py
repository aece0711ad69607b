"""The host loop: how many steps until something is due, in what order."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import keras

from trainer.asked import ask, why_again
from trainer.callback_list import CallbackList
from trainer.calls import Calls
from trainer.checks import check_micro_batches
from trainer.data import exact, feeder
from trainer.divergence import (
    check_way_back,
    go_back,
    save_beginning,
    without_skipped,
)
from trainer.errors import StartAgain, UserError
from trainer.evaluation import Interrupted
from trainer.period import Period, Ticker, parse_period
from trainer.state import check_alike, unchanged
from trainer.step.guard import Fault
from trainer.step.totals import DATA_WAIT, Totals

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class Loop:
    """Trains up to a step, many steps a graph call, and fires events.

    A graph call ends at multiples of `steps_per_loop`, and earlier where an
    evaluation, a callback's due step, an epoch or the run ends. Logging waits
    for the next such boundary.

    Args:
        trainer: owns model, data and step.
        steps: the step at which training ends.
        evaluate: whether to evaluate when due and at the end.
        model_dir: where the run lives; `None` writes nothing.
        callbacks: see `trainer.Callback` for the order of events.
        steps_per_loop: the most steps in one graph call.
        log_every: the period of training logs, such as `100` or `"1 epoch"`.
        eval_every: the period of evaluations; `None` means each epoch, or
            only at the end where epochs are not known.
        eval_steps: batches in an evaluation; `None` means all.
        loop_seconds: a graph call that takes longer is halved from then on,
            because a run that is asked to leave does so between two calls.

    Attributes:
        save_now: in `on_save`, whether somebody asked for a checkpoint.
        unfired_from: the step before the last graph call, if what is due
            after it has not been called yet: a run that is asked to leave
            saves at once, and the next attempt makes up for it.
        begun_epoch: the last epoch whose `on_epoch_begin` has been called,
            in any attempt.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        trainer: "Trainer",
        *,
        steps: int,
        evaluate: bool,
        model_dir: str | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        steps_per_loop: int = 100,
        log_every: int | str = 100,
        eval_every: int | str | None = None,
        eval_steps: int | None = None,
        loop_seconds: float = 15.0,
    ) -> None:
        if steps < 1 or steps_per_loop < 1:
            raise UserError(
                f"train_steps = {steps} and steps_per_loop = {steps_per_loop} "
                "must be at least 1."
            )
        self.steps = steps
        self.evaluate = evaluate
        self.logs: dict[str, float] = {}
        self.totals = {"interval": Totals(), "epoch": Totals()}
        self.trainer = trainer
        trainer.build()
        self.batches = trainer.batches("train")
        check_micro_batches(
            trainer.model,
            self.batches.last_size,
            accumulation_steps=trainer.accumulation_steps,
        )
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.steps_per_loop = self.asked_steps_per_loop = steps_per_loop
        self._eval_steps = eval_steps
        agree = trainer.plugin.any_process
        self._log = Ticker(self.period(log_every, "log_every"), agree)
        self._eval = Ticker(self._eval_period(eval_every), agree)
        self.tickers = {"log": self._log, "eval": self._eval}
        if evaluate:
            trainer.batches("eval")  # What is wrong there shows now.
        self.callbacks = CallbackList(callbacks, trainer)
        self.save_now = False
        self._interrupts = False
        self.unfired_from: int | None = None
        self.begun_epoch: int | None = None
        self.interval_seconds = 0.0
        self._calls = Calls(trainer.accounts, longest_seconds=loop_seconds)
        trainer.loop = self
        trainer.model_dir = model_dir

    def period(self, value: int | str, name: str) -> Period:
        """Parses a period of this run; see `trainer.parse_period`."""
        return parse_period(
            value,
            name=name,
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.steps,
        )

    @property
    def epoch(self) -> int:
        """The number of complete epochs; zero while epochs are not known."""
        return self._epoch_of(self.trainer.step)

    @property
    def fired_step(self) -> int:
        """The last step at which everything that was due has been called."""
        left_at = self.unfired_from
        return self.trainer.step if left_at is None else left_at

    @property
    def is_stopped(self) -> bool:
        """Whether this process asks to end training before its last step."""
        trainer = self.trainer
        return bool(trainer.stop_reason or trainer.model.stop_training)

    @property
    def is_ending(self) -> bool:
        """Whether no further step is wanted."""
        return self.trainer.step >= self.steps or self.is_stopped

    def run(
        self, before_first_step: Callable[["Trainer"], None] | None = None
    ) -> dict[str, float]:
        """Trains to the end, or to where a callback stops it.

        Args:
            before_first_step: called when all is built and restored.

        Returns:
            The newest training values, and evaluation values as `val_*`.

        Raises:
            StartAgain: the run was asked to leave; its state is saved.
            Diverged: the guard found a bad step, and there is no way back.
        """
        trainer = self.trainer
        check_way_back(self)
        trainer.stop_reason = trainer.again_reason = None
        trainer.save_asked = False
        trainer.model.stop_training = False
        try:
            self._attach()
            self.callbacks.call("setup")
            check_alike(trainer)
            iterator = self.trace()
            if before_first_step is not None:
                before_first_step(trainer)
            trainer.accounts.started()
            self._begin()
            save_beginning(self)
            self._train(iterator)
            self.callbacks.end(dict(self.logs))
        finally:
            self.callbacks.close()
        return dict(self.logs)

    def _begin(self) -> None:
        resumed = self.begun_epoch is not None
        if resumed and self.callbacks.keras_has("on_train_begin"):
            with unchanged(self.trainer):
                self.callbacks.begin()
        else:
            self.callbacks.begin()

    def _begin_epoch(self, epoch: int) -> None:
        """Calls `on_epoch_begin`: what it does counts once an epoch.

        A run that goes on within an epoch calls it again, because callbacks
        may have to set up what no checkpoint holds.
        """
        event = "on_epoch_begin"
        if self.begun_epoch != epoch:
            self.callbacks.call(event, epoch, {})
            self.begun_epoch = epoch
        elif self.callbacks.have(event):
            with unchanged(self.trainer):
                self.callbacks.repeat(event, epoch, {})

    def _attach(self) -> None:
        epochs = None
        if self.steps_per_epoch:
            epochs = -(-self.steps // self.steps_per_epoch)
        self.callbacks.attach(
            self.trainer.model,
            {"verbose": 0, "epochs": epochs, "steps": self.steps_per_epoch},
        )

    def trace(self) -> Any:
        """Builds every graph of a new run; what is wrong in one shows now.

        Returns:
            The training input, at the trainer's step.
        """
        with self.trainer.accounts.phase("compile"):
            return self._trace()

    def _trace(self) -> Any:
        trainer = self.trainer
        pieces = feeder(
            without_skipped(trainer, self.batches),
            start=trainer.step,
            num_replicas=trainer.plugin.num_replicas,
            micro=trainer.accumulation_steps,
            fit=exact if trainer.plugin.static_shapes else None,
        )
        iterator = trainer.plugin.distribute(pieces, training=True)
        trainer.train_runner.trace(iterator)
        # A run that goes on has evaluated before: it traces when it is due.
        if self.evaluate and not trainer.step:
            trainer.trace_evaluation()
        return iterator

    def _train(self, iterator: Any) -> None:
        """Trains to the end, as often as the guard sends it back."""
        while (fault := self._train_on(iterator)) is not None:
            with self.trainer.accounts.phase("lost"):
                go_back(self, fault)
                if self.trainer.plugin.batches_by_step:
                    iterator = self._trace()

    def _train_on(self, iterator: Any) -> Fault | None:
        """Trains to the end, or up to a step that the guard finds bad."""
        trainer, begin = self.trainer, self.fired_step
        if begin >= self.steps:
            return None
        self._log.start(begin)
        self._eval.start(begin)
        self._begin_epoch(self._epoch_of(begin))
        if begin < trainer.step:
            stopping = self._after_call(begin)
        else:
            # A run that was stopped, and killed before its end, stays so.
            stopping = ask(trainer).stop
        while trainer.step < self.steps and not stopping:
            first = trainer.step
            count = self._next_boundary(first) - first
            fault = self._run_steps(iterator, count)
            if fault is not None:
                return fault
            stopping = self._after_call(first)
        if self.steps_per_epoch is None:
            self.callbacks.call("on_epoch_end", 0, dict(self.logs))
        return None

    def _run_steps(self, iterator: Any, count: int) -> Fault | None:
        """One host loop, between its two batch events.

        Returns:
            What the guard found; the second event is then left out.
        """
        trainer = self.trainer
        in_epoch = trainer.step % (self.steps_per_epoch or self.steps)
        self.callbacks.call("on_train_batch_begin", in_epoch, {})
        begin = time.perf_counter()
        with trainer.accounts.phase("step"):
            sums = dict(trainer.train_runner(iterator, count))
            waited = sums.pop(DATA_WAIT)
            self.totals["interval"].add(sums)
            self.totals["epoch"].add(sums)
            trainer.step += count
            watch = trainer.parts.watch
            fault = None if watch is None else watch.fault()
            logs = (
                self.totals["epoch"].values(trainer.parts.metrics)
                if self.callbacks.wants_batch_logs
                else {}
            )
        seconds = time.perf_counter() - begin
        self.interval_seconds += seconds
        self._calls.book(count, seconds=seconds, waited=waited.total)
        if fault is not None:
            return fault
        last = in_epoch + count - 1
        self.callbacks.call("on_train_batch_end", last, logs)
        return None

    def _after_call(self, first: int) -> bool:
        """Whatever is due after a graph call; whether training must stop.

        Args:
            first: the step before the call.

        Raises:
            StartAgain: a process is asked to leave.
        """
        asked = ask(self.trainer, shorter=self._calls.too_long)
        if asked.again:
            self._leave(first)
        if asked.shorter and self.steps_per_loop > 1:
            self.steps_per_loop //= 2
        self.save_now = asked.save
        try:
            self._fire(first, stopping=asked.stop)
        except Interrupted:
            self._eval.call_back()
            self._leave(first)
        self.unfired_from = None
        self.callbacks.call("on_save", self.trainer.step, dict(self.logs))
        if self.save_now:
            self.trainer.save_asked = False
        asked = ask(self.trainer)
        if asked.again:
            self._leave(None)
        return asked.stop

    def _fire(self, first: int, *, stopping: bool) -> None:
        """Evaluation, logs and the epoch's end, if due."""
        step, epoch = self.trainer.step, self._epoch_of(first)
        ending = step >= self.steps or stopping
        evaluated = {}
        if self.evaluate and (self._eval.due(step) or ending):
            evaluated = self._run_evaluation()
        log_due = self._log.due(step)
        if log_due or ending:
            self._log_training(step)
        if evaluated:
            self.logs |= {f"val_{k}": v for k, v in evaluated.items()}
            self.callbacks.call("on_log", step, "eval", evaluated)
        if log_due:
            # A log that only the end asked for leaves the interval open, so
            # that a longer run later logs the same values.
            self.totals["interval"].reset()
            self.interval_seconds = 0.0
        if self.epoch > epoch:
            self._end_epoch(epoch, ending=ending)

    def has_to_leave(self) -> bool:
        """Whether an evaluation that this loop is in should be given up."""
        return self._interrupts and ask(self.trainer).again

    def _leave(self, unfired_from: int | None) -> NoReturn:
        """Lets callbacks save, and ends this attempt."""
        self.unfired_from = unfired_from
        reason = why_again(self.trainer) or "another process has to leave"
        self.callbacks.call("on_leave", self.trainer.step)
        raise StartAgain(f"{reason}; left at step {self.trainer.step}")

    def _run_evaluation(self) -> dict[str, float]:
        self.callbacks.call("on_test_begin", {})
        with self.trainer.accounts.phase("evaluation"):
            self._interrupts = True
            try:
                values = self.trainer.evaluate(self._eval_steps)
            finally:
                self._interrupts = False
        self.callbacks.call("on_test_end", dict(values))
        return values

    def _log_training(self, step: int) -> None:
        values = self.totals["interval"].values(self.trainer.parts.metrics)
        self.logs |= values
        speed = self.totals["interval"].examples / max(
            self.interval_seconds, 1e-9
        )
        logs = {
            **values,
            **self.trainer.learning_rates(),
            "examples_per_second": speed,
        }
        self.callbacks.call("on_log", step, "train", logs)

    def _end_epoch(self, epoch: int, *, ending: bool) -> None:
        values = self.totals["epoch"].values(self.trainer.parts.metrics)
        validation = {
            key: value
            for key, value in self.logs.items()
            if key.startswith("val_")
        }
        self.totals["epoch"].reset()
        self.callbacks.call("on_epoch_end", epoch, values | validation)
        if not ending:
            self._begin_epoch(epoch + 1)

    def _epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch if self.steps_per_epoch else 0

    def _next_boundary(self, step: int) -> int:
        ends = [
            self.steps,
            Period(steps=self.steps_per_loop).next_step(step),
            self.callbacks.next_due(step),
        ]
        if self.evaluate:
            ends.append(self._eval.next_step(step))
        if self.steps_per_epoch:
            ends.append(Period(steps=self.steps_per_epoch).next_step(step))
        return min(end for end in ends if end is not None)

    def _eval_period(self, eval_every: int | str | None) -> Period:
        if eval_every is None:
            return Period(steps=self.steps_per_epoch or self.steps)
        return self.period(eval_every, "eval_every")
