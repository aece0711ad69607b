"""The host loop: how many steps until something is due, in what order."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from trainer.callback_list import CallbackList
from trainer.checks import check_micro_batches
from trainer.data import exact, feeder
from trainer.errors import UserError
from trainer.period import Period, Ticker, parse_period
from trainer.step.totals import Totals

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
        self._steps_per_loop = steps_per_loop
        self._eval_steps = eval_steps
        agree = trainer.plugin.any_process
        self._log = Ticker(self.period(log_every, "log_every"), agree)
        self._eval = Ticker(self._eval_period(eval_every), agree)
        if evaluate:
            trainer.batches("eval")  # What is wrong there shows now.
        self.callbacks = CallbackList(callbacks, trainer)
        self._seconds = 0.0
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
        if self.steps_per_epoch is None:
            return 0
        return self.trainer.step // self.steps_per_epoch

    def run(
        self, before_first_step: Callable[["Trainer"], None] | None = None
    ) -> dict[str, float]:
        """Trains to the end, or to where a callback stops it.

        Args:
            before_first_step: called when all is built and restored.

        Returns:
            The newest training values, and evaluation values as `val_*`.
        """
        trainer = self.trainer
        trainer.stop_reason = None
        trainer.model.stop_training = False
        try:
            self._attach()
            self.callbacks.call("setup")
            iterator = self.trace()
            if before_first_step is not None:
                before_first_step(trainer)
            self.callbacks.call("on_train_begin", {})
            self._train(iterator)
            self.callbacks.call("on_train_end", dict(self.logs))
        finally:
            self.callbacks.close()
        return dict(self.logs)

    def _attach(self) -> None:
        epochs = None
        if self.steps_per_epoch:
            epochs = -(-self.steps // self.steps_per_epoch)
        self.callbacks.attach(
            self.trainer.model,
            {"verbose": 0, "epochs": epochs, "steps": self.steps_per_epoch},
        )

    def trace(self) -> Any:
        """Builds every graph of the run; what is wrong in one shows now.

        Returns:
            The training input, at the trainer's step.
        """
        trainer = self.trainer
        pieces = feeder(
            self.batches,
            start=trainer.step,
            num_replicas=trainer.plugin.num_replicas,
            micro=trainer.accumulation_steps,
            fit=exact if trainer.plugin.static_shapes else None,
        )
        iterator = trainer.plugin.distribute(pieces, training=True)
        trainer.train_runner.trace(iterator)
        if self.evaluate:
            trainer.trace_evaluation()
        return iterator

    def _train(self, iterator: Any) -> None:
        trainer = self.trainer
        if trainer.step >= self.steps:
            return
        self._log.start(trainer.step)
        self._eval.start(trainer.step)
        self.callbacks.call("on_epoch_begin", self.epoch, {})
        stopping = False
        while trainer.step < self.steps and not stopping:
            first, epoch = trainer.step, self.epoch
            count = self._next_boundary(first) - first
            self._run_steps(iterator, count)
            self._fire(epoch, stopping=self._asked_to_stop())
            stopping = self._asked_to_stop()
        if self.steps_per_epoch is None:
            self.callbacks.call("on_epoch_end", 0, dict(self.logs))

    def _run_steps(self, iterator: Any, count: int) -> None:
        """One host loop, between its two batch events."""
        trainer = self.trainer
        in_epoch = trainer.step % (self.steps_per_epoch or self.steps)
        self.callbacks.call("on_train_batch_begin", in_epoch, {})
        begin = time.perf_counter()
        sums = trainer.train_runner(iterator, count)
        self.totals["interval"].add(sums)
        self.totals["epoch"].add(sums)
        trainer.step += count
        logs = (
            self.totals["epoch"].values(trainer.parts.metrics)
            if self.callbacks.wants_batch_logs
            else {}
        )
        self._seconds += time.perf_counter() - begin
        last = in_epoch + count - 1
        self.callbacks.call("on_train_batch_end", last, logs)

    def _fire(self, epoch: int, *, stopping: bool) -> None:
        """Whatever is due after a host loop that began in an epoch."""
        step = self.trainer.step
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
            self._seconds = 0.0
        if self.epoch > epoch:
            self._end_epoch(epoch, ending=ending)
        self.callbacks.call("on_save", step, dict(self.logs))

    def _run_evaluation(self) -> dict[str, float]:
        self.callbacks.call("on_test_begin", {})
        values = self.trainer.evaluate(self._eval_steps)
        self.callbacks.call("on_test_end", dict(values))
        return values

    def _log_training(self, step: int) -> None:
        values = self.totals["interval"].values(self.trainer.parts.metrics)
        self.logs |= values
        speed = self.totals["interval"].examples / max(self._seconds, 1e-9)
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
            self.callbacks.call("on_epoch_begin", epoch + 1, {})

    def _asked_to_stop(self) -> bool:
        """Whether a callback of any process wants to stop."""
        trainer = self.trainer
        asked = bool(trainer.stop_reason or trainer.model.stop_training)
        return trainer.plugin.any_process(asked)

    def _next_boundary(self, step: int) -> int:
        ends = [
            self.steps,
            Period(steps=self._steps_per_loop).next_step(step),
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
