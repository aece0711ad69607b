"""The host loop: how many steps until something is due, in what order.

A long file, but a single one, so that the order of events can be read from top
to bottom.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from trainer.data import Resume
from trainer.errors import StartAgain, UserError
from trainer.loop.call_times import Calls
from trainer.loop.callback_list import CallbackList
from trainer.loop.compiled_form import CompiledForm
from trainer.loop.control import Requests
from trainer.loop.evaluation_sets import (
    EVAL,
    check_unambiguous,
    sets_of,
)
from trainer.loop.evaluator import Interrupted, count_of
from trainer.loop.loop_state import LoopState
from trainer.loop.monitor import check_monitored
from trainer.loop.profiler import Profiler
from trainer.loop.reporter import Reporter
from trainer.loop.rollback import Rollback, Skipped
from trainer.loop.run import Run
from trainer.loop.schedule import Epochs
from trainer.loop.training_input import training_input
from trainer.options import RunOptions
from trainer.runtime.run_lock import locked
from trainer.runtime.run_paths import check_path, plain
from trainer.step.divergence_guard import Fault
from trainer.step.forms import Form
from trainer.step.logs import DATA_WAIT, MISSES
from trainer.step.prepare import prepare
from trainer.step.reductions.sums import Sums, added
from trainer.strategy.checks import check_micro_batches
from trainer.values.periods import (
    Period,
    PeriodLike,
    in_epochs,
    parse_length,
    parse_period,
)


@dataclasses.dataclass(frozen=True)
class FitEpochs:
    """The epochs of a call of `Trainer.fit`.

    Attributes:
        epochs: the number of the epoch before which it ends.
        initial_epoch: the number of the first one.
        steps_per_epoch: `None` for one pass over the data.
    """

    epochs: int
    initial_epoch: int = 0
    steps_per_epoch: int | None = None

    @property
    def count(self) -> int:
        """How many epochs it trains."""
        return self.epochs - self.initial_epoch


class Loop:
    """Trains up to a step, many steps a graph call, and fires events.

    A host loop ends at multiples of `steps_per_loop`, and earlier where an
    evaluation or a callback is due, or where an epoch or the run ends. Logging
    waits for the next such boundary. Its steps are made in one graph call, or
    in several if one takes too long. How many depends on a clock, so between
    them happens only what depends on a clock anyway: saving and leaving.

    Args:
        run: owns model, data and step.
        options: of the run.
        evaluate: whether to evaluate when due and at the end.
        fit: begins epochs of its own, as `Trainer.fit` does;
            `options.train_steps` is then not used.
        verbose: what callbacks that show progress are given as their
            `verbose`.

    Attributes:
        steps: the step at which training ends.
        batches: the training data.
        callbacks: of this run.
        reporter: evaluates, logs and ends epochs.
        form: gives steps their compiled form; `None` before it is known.
        state: where the loop is, as checkpoints hold it.
        form: gives steps their compiled form; `None` before it is known.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        run: Run,
        options: RunOptions,
        *,
        evaluate: bool,
        fit: FitEpochs | None = None,
        verbose: int = 1,
    ) -> None:
        self._run = run
        self._verbose = verbose
        self._max_time = options.max_time
        self.batches = run.batches("train")
        check_micro_batches(
            run.model,
            self.batches.last_size,
            accumulation_steps=run.spec.accumulation_steps,
        )
        run.epochs, self.steps = self._length(options.train_steps, fit)
        run.steps = self.steps
        # How many batches the data is ahead of the steps.
        self._ahead = 0 if fit is None else self._fresh_pass()
        self.callbacks = CallbackList(options.callbacks, run)
        run.saves = self.callbacks.save
        run.keras_ends = self.callbacks.keras_has("on_train_end")
        periods = sets_of(options.eval_every) if evaluate else {}
        run.sets = tuple(periods)
        self.reporter = Reporter(
            run,
            self.callbacks,
            log=run.period(options.log_every, "log_every"),
            evaluations={
                split: self._eval_period(split, every)
                for split, every in periods.items()
            },
            eval_steps=options.eval_steps,
            evaluates_at_end=fit is None,
        )
        run.check_data(self.batches)
        for split in run.sets:
            # Errors there show before training.
            batches = run.batches(split)
            name = "eval_steps" if fit is None else "validation_steps"
            count_of(batches, options.eval_steps, name=name)
            run.check_data(batches)
        self.state = LoopState(
            run,
            steps_per_loop=self._length_of_loop(options.steps_per_loop),
            reporter=self.reporter,
            callbacks=self.callbacks,
            max_time=options.max_time,
            is_fit=fit is not None,
        )
        self._rollback: Rollback | None = None
        self._iterator: Any = None
        self._calls = Calls(run.accounts, longest_seconds=options.loop_seconds)
        # From here on checkpoints see this loop, and the next one may go on
        # from it once it has ended well.
        self._last, run.built.last = run.built.last, None
        self.form: CompiledForm | None = None
        run.state.host = self.state
        if run.model_dir is not None:
            run.model_dir = plain(run.model_dir)
            check_path(run.model_dir)
        self._profiler = Profiler(
            options.profile,
            is_chief=run.plugin.is_chief,
            model_dir=run.model_dir,
            last_step=self.steps,
        )

    def _length(
        self, steps: int | str, fit: FitEpochs | None
    ) -> tuple[Epochs, int]:
        """The epochs of this call, and the step at which it ends."""
        batches = self.batches
        if fit is not None:
            per_epoch = fit.steps_per_epoch or batches.steps_per_epoch
            if per_epoch is None:
                raise UserError(
                    "The data does not say how many batches an epoch has: "
                    "pass steps_per_epoch."
                )
            epochs = Epochs(
                per_epoch, begin=self._run.step, first=fit.initial_epoch
            )
            return epochs, epochs.begin + fit.count * per_epoch
        # A dataset of unknown length is counted, but no further than needed.
        if not in_epochs(steps):
            batches.learn_length(at_most=parse_length(steps, name="steps"))
        epochs = Epochs(batches.steps_per_epoch)
        return epochs, parse_length(
            steps, name="train_steps", steps_per_epoch=epochs.steps
        )

    def _fresh_pass(self) -> int:
        """How many batches to pass over, so that a new pass begins now."""
        begin, length = self._run.epochs.begin, self.batches.steps_per_epoch
        # What is shuffled here gets an order that no earlier pass had. A
        # dataset's order is its own, and to pass over batches takes time.
        if self.batches.resume is Resume.SEEK and length:
            return -begin % length
        return -begin

    def run(self) -> dict[str, float]:
        """Trains to the end, or to where a callback stops it.

        Returns:
            The newest training values, and evaluation values as `val_*`.

        Raises:
            UserError: another run is in the same directory.
            StartAgain: the run had to leave; its state is saved.
            Diverged: the guard found a bad step, and there is no way back.
        """
        with self.ready():
            return self.train()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Locks the run directory, restores the run, and traces its steps.

        What a run can be refused for shows by then, and nothing is written
        before `train`. At the end callbacks are closed and the lock released.

        Raises:
            UserError: another run is in the same directory.
        """
        run = self._run
        if run.spec.guard is not None:
            self._rollback = Rollback(
                run.spec.guard,
                run,
                self.callbacks,
                self.batches,
            )
        # A request of an earlier call of `train` is not for this one.
        run.model.stop_training = False
        # Only the chief writes, so only the chief takes the run's lock.
        writes_to = run.model_dir if run.plugin.is_chief else None
        with locked(writes_to) as self._check_lock:
            try:
                if writes_to is not None:
                    Skipped(writes_to, self.batches.batch_size).mend()
                self._attach()
                if self._last is not None:
                    self.state.continue_from(self._last)
                self._last = None
                # Here a callback restores the newest checkpoint.
                self.callbacks.call("setup")
                # All processes must have restored the same step, or their
                # collectives would not meet.
                run.state.check_alike()
                # After restoring: the input starts at the restored step.
                self._iterator = self.trace()
                yield
            finally:
                # On every exit: no thread or file of a callback may outlive the
                # run.
                self.callbacks.close()
                self._iterator = None

    def train(self) -> dict[str, float]:
        """Trains a run that is `ready`; see `run`."""
        run = self._run
        run.accounts.started()
        self._begin()
        # A fault in the very first steps must have something to go back to.
        if self._rollback and self._rollback.needs_a_checkpoint:
            self._run.save_now = True
            logs = dict(self.reporter.logs)
            self.callbacks.call("on_save", run.step, logs)
        # The run was complete before: only its evaluation is returned.
        if self._run.sets and self._run.fired_step >= self.steps:
            self.reporter.evaluate_again()
        try:
            self._train()
        finally:
            self.reporter.end()
            self._profiler.stop()
        self._calls.report_waiting()
        logs = dict(self.reporter.logs)
        self.callbacks.call_savers("before_end", logs)
        self.callbacks.end(logs, before_savers=self.reporter.hand_over)
        run.built.last = self.state
        return self.reporter.newest

    def _begin(self) -> None:
        # A Keras callback's `on_train_begin` may reset variables that the
        # checkpoint holds: in a resumed run they are put back.
        resumed = self.reporter.begun_epoch is not None
        if resumed and self.callbacks.keras_has("on_train_begin"):
            with self._run.state.unchanged():
                self.callbacks.begin()
        else:
            self.callbacks.begin()

    def _attach(self) -> None:
        epochs = None
        if self._run.epochs.steps:
            steps = self.steps - self._run.epochs.begin
            epochs = self._run.epochs.first - (-steps // self._run.epochs.steps)
        # As in `fit`; verbose 0, because progress is shown by a callback of
        # ours.
        self.callbacks.attach(
            self._run.model,
            {"verbose": 0, "epochs": epochs, "steps": self._run.epochs.steps},
        )
        for callback in self.callbacks.ours:
            callback.verbose = self._verbose

    def try_steps(self, count: int, faults: list[str]) -> float:
        """Makes steps of a run that is `ready`, and calls nobody for them.

        Args:
            count: how many.
            faults: gets a sentence on what the guard has found in them, if it
                would not end the run.

        Returns:
            The seconds that they took.

        Raises:
            Diverged: the guard would end the run.
        """
        begin = time.perf_counter()
        fault = self._call(count)
        self.reporter.epoch_values()  # Waits for the device.
        seconds = time.perf_counter() - begin
        if fault is not None:
            assert self._rollback is not None
            faults.append(self._rollback.judge(fault, earlier=len(faults)))
        return seconds

    def trace(self) -> Any:
        """Builds every graph of a new run, so that errors show early.

        Returns:
            The training input, at the trainer's step.
        """
        with self._run.accounts.phase("compile"):
            return self._trace()

    def _trace(self, iterator: Any = None) -> Any:
        run = self._run
        run.follow_trainable()
        prepare(run.spec, training=True)
        self.form = CompiledForm(
            run,
            self.batches,
            last=run.built.form,
            compared=self.state.compared,
        )
        self.form.take()
        run.built.form = self.form
        if iterator is None or run.spec.form is Form.XLA_STACK:
            iterator = training_input(
                run, self.batches, start=run.step + self._ahead
            )
        run.train_runner.trace(iterator)
        # The step checks this when it is traced, but an earlier call of
        # `train`, which did not save, may have traced it.
        if self.callbacks.save:
            run.parts.untracked.require_nothing_lost()
        measured = self._measured()
        evaluated = {*measured, *run.parts.metrics.measures}
        check_unambiguous(self._run.sets, evaluated)
        check_monitored(
            self.callbacks.all,
            measured=measured,
            evaluated=evaluated,
            sets=self._run.sets,
            # What runs as Python shows its values only once it has run.
            may_add=run.spec.has_own("eval_step") or run.spec.run_eagerly,
        )
        # A resumed run has evaluated before, so nothing new can be wrong: it
        # traces when an evaluation is due.
        if not run.step:
            for split in self._run.sets:
                run.evaluator(run.batches(split)).trace()
        return iterator

    def _measured(self) -> set[str]:
        """The names of the values that a training step gives."""
        packing = getattr(self._run.train_runner, "packing", None)
        traced = [] if packing is None else packing.names
        rates = self._run.learning_rates()
        measures = self._run.spec.parts.metrics.measures
        return {
            "loss",
            # Parts of the loss have a prefix, what is no value an underscore.
            *(n for n in traced if ":" not in n and not n.startswith("_")),
            *(n for n, m in measures.items() if not m.of_whole_set),
            *rates,
        }

    def _length_of_loop(self, asked: int) -> int:
        """The most steps in a host loop with this run's callbacks."""
        return asked

    def _change_form(self) -> None:
        """Gives the next steps another form, as a run that is resumed here."""
        with self._run.accounts.phase("compile"):
            self._iterator = self._trace(self._iterator)

    def _train(self) -> None:
        """Trains to the end, going back as often as the guard says so."""
        while (fault := self._train_on()) is not None:
            with self._run.accounts.phase("lost"):
                assert self._rollback is not None
                self._rollback.go_back(fault)
                # A new input from the restored step on, without the batch at
                # fault. Where batches have no number, the input just goes on.
                if self._run.plugin.options.batches_by_step:
                    self._iterator = self._trace()

    def _train_on(self) -> Fault | None:
        """Trains to the end, or up to a step that the guard finds bad."""
        run, begin = self._run, self._run.fired_step
        if begin >= self.steps:
            return None
        if begin == run.step:
            # A request may have come during start-up, or in an earlier attempt
            # that was killed after its last save.
            requests = self._agree()
            if requests.restart:
                self._leave(None)
            if requests.stop:
                return None
        # From `begin`, not from the present step: what an earlier attempt left
        # unfired is due now, before the next step.
        self.reporter.start(begin)
        self.reporter.begin_epoch(self.reporter.epoch_of(begin))
        # An earlier attempt left after a graph call: first what was due then.
        stopping = begin < run.step and self._after_steps(begin)
        checked_for = None
        while run.step < self.steps and not stopping:
            if checked_for != self.reporter.begun_epoch:
                # Once an epoch: looking through a large model takes a while.
                run.check_still_trainable()
                checked_for = self.reporter.begun_epoch
            first = run.step
            assert self.form is not None
            if self.form.is_due(first):
                self._change_form()
            fault = self._run_steps(self._next_boundary(first))
            if fault is not None:
                return fault
            stopping = self._after_steps(first)
        # Without epochs the whole run is one, which ends here.
        if self._run.epochs.steps is None:
            self.callbacks.call("on_epoch_end", 0, self.reporter.newest)
            self.reporter.hand_over()
        return None

    def _run_steps(self, end: int) -> Fault | None:
        """One host loop up to a step, between its two batch events.

        Returns:
            What the guard found; the second event is then left out.

        Raises:
            StartAgain: a process has to leave.
            UserError: another run has taken the directory.
        """
        run = self._run
        # A run that left within a host loop has begun its batch already.
        if not self.state.is_within:
            # Keras numbers batches from the beginning of the epoch.
            in_epoch = self._in_epoch(run.step)
            self.callbacks.call("on_train_batch_begin", in_epoch, {})
            self.state.is_within = True
        self._profiler.before(run.step)
        while True:
            count = min(self.state.steps_per_call, end - run.step)
            with self._profiler.call(run.step):
                fault = self._call(count)
            if fault is not None:
                self.state.is_within = False
                return fault
            if run.step >= end:
                break
            self._between_calls()
        self.state.is_within = False
        if self._profiler.is_over(run.step):
            self.reporter.epoch_values()  # Waits for the device.
            self._profiler.stop()
        # Computing values waits for the device: only if a callback reads them.
        wanted = self.callbacks.wants_batch_logs
        logs = self.reporter.epoch_values() if wanted else {}
        last = self._in_epoch(end - 1)
        self.callbacks.call("on_train_batch_end", last, logs)
        return None

    def _in_epoch(self, step: int) -> int:
        return (step - self._run.epochs.begin) % (
            self._run.epochs.steps or self.steps
        )

    def _call(self, count: int) -> Fault | None:
        """One graph call; returns what the guard found."""
        run = self._run
        begin = time.perf_counter()
        with run.accounts.phase("step"):
            before = self.reporter.sums
            after = run.train_runner(self._iterator, count, before)
            run.step += count
            # Reading the fault waits for the device. Without a guard, the next
            # call can be prepared while this one runs.
            guard = run.parts.guard
            fault = None if guard is None else guard.fault()
            if MISSES in after[0].packing.names:
                self._require_no_miss(before[0], after[0])
            seconds = time.perf_counter() - begin
            self.reporter.take(after, seconds=seconds)
        # Only noted here: reading it would wait for the device.
        waited = functools.partial(added, DATA_WAIT, before[0], after[0])
        self._calls.book(count, seconds=seconds, waited=waited)
        return fault

    def _require_no_miss(self, before: Sums | None, after: Sums) -> None:
        """Does what XLA leaves out; waits for the device.

        Raises:
            UserError: a lookup had a number without a row.
        """
        count = int(added(MISSES, before, after))
        if count:
            raise UserError(
                f"The batches up to step {self._run.step} hold numbers "
                f"({count}) that are out of bounds of a lookup: "
                f"{'; '.join(self._run.spec.lookups.found)}. Nothing after "
                "the last checkpoint is kept. --jit_compile=graph stops at "
                "the number itself."
            )

    def _between_calls(self) -> None:
        """Lets a run leave or save within a host loop.

        Raises:
            StartAgain: a process has to leave.
            UserError: another run has taken the directory.
        """
        requests = self._agree_after_call()
        if requests.restart:
            self._leave(None)
        # A stop waits for the end of the host loop: a checkpoint from here
        # would hold a stopped run in the middle of it.
        if not requests.stop:
            self._run.save_now = requests.save
            self._save(only_savers=True)

    def _agree_after_call(self) -> Requests:
        # Another run may have taken the directory while this one was suspended.
        self._check_lock()
        requests = self._agree(shorter=self._calls.too_long)
        # Agreed on by all processes, whose graph calls must have equal lengths.
        if requests.shorter and self.state.steps_per_call > 1:
            self.state.steps_per_call //= 2
        return requests

    def _agree(self, *, shorter: bool = False) -> Requests:
        self._check_time()
        return self._run.control.agree(
            self._run.plugin,
            stopped=self._run.is_stopped,
            shorter=shorter,
        )

    def _check_time(self) -> None:
        """Stops a run that has trained for `max_time`."""
        if self._max_time is None or self._run.stop_reason is not None:
            return
        limit = parse_period(self._max_time, name="max_time").seconds
        if limit is not None and self.reporter.training_seconds >= limit:
            self._run.stop(f"max_time = {self._max_time!r} is over")

    def _save(self, *, only_savers: bool = False) -> None:
        logs = dict(self.reporter.logs)
        event = "on_save", self._run.step, logs
        if only_savers:
            self.callbacks.call_savers(*event)
        else:
            self.callbacks.call(*event)
        if self._run.save_now:
            self._run.control.save_requested = False

    def _after_steps(self, first: int) -> bool:
        """Calls what is due after a host loop.

        Args:
            first: the step before it.

        Returns:
            Whether training must stop.

        Raises:
            StartAgain: a process has to leave.
            UserError: another run has taken the directory.
        """
        # Leaving comes first: evaluation and logs may take longer than the
        # time that is left. They are due again at the next start.
        requests = self._agree_after_call()
        if requests.restart:
            self._leave(first)
        self._run.save_now = requests.save
        ending = self._run.step >= self.steps or requests.stop
        try:
            self.reporter.fire(first, ending=ending)
        except Interrupted:
            self._leave(first)
        self._run.unfired_from = None
        self._save()
        # Again: evaluation and saving took time, and callbacks may request it.
        requests = self._agree()
        if requests.restart:
            self._leave(None)
        return requests.stop

    def _leave(self, unfired_from: int | None) -> NoReturn:
        """Lets callbacks save, and ends this attempt.

        Args:
            unfired_from: the step before the last host loop, if what is due
                after it has not been called yet.
        """
        self._run.unfired_from = unfired_from
        control, plugin = self._run.control, self._run.plugin
        reason = control.why_restart(plugin) or "another process has to leave"
        # The savers' last chance: the machine may be gone in seconds.
        self.callbacks.call("on_leave", self._run.step)
        self.reporter.logged.warn_of_lost()
        self._run.built.last = self.state
        raise StartAgain(f"{reason}; left at step {self._run.step}")

    def _next_boundary(self, step: int) -> int:
        # Multiples of steps_per_loop, not steps from here: boundaries are the
        # same in a run that was resumed in between.
        ends = [
            self.steps,
            Period(steps=self.state.steps_per_loop).next_step(step),
            self.callbacks.next_due(step),
            self._profiler.next_due(step),
            self.reporter.next_step(step),
            None if self.form is None else self.form.next_change(step),
        ]
        return min(end for end in ends if end is not None)

    def _eval_period(self, split: str, every: PeriodLike | None) -> Period:
        if every is None:
            # Without epochs, evaluation is due at the end.
            return Period(
                steps=self._run.epochs.steps or self.steps,
                begin=self._run.epochs.begin,
            )
        name = "eval_every" if split == EVAL else f"eval_every[{split!r}]"
        period = self._run.period(every, name)
        # As in Keras: every n-th by their numbers, not from the first one on.
        earlier = self._run.epochs.first * (self._run.epochs.steps or 0)
        return dataclasses.replace(period, begin=period.begin - earlier)
