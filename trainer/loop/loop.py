"""The host loop: how many steps until something is due, in what order.

A long file, but a single one, so that the order of events can be read from top
to bottom.
"""

import contextlib
import dataclasses
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
    EvalEvery,
    check_unambiguous,
    sets_of,
)
from trainer.loop.evaluator import Interrupted, count_of
from trainer.loop.loop_state import LoopState
from trainer.loop.monitor import check_monitored
from trainer.loop.profiler import Profiler
from trainer.loop.profiler import Steps as ProfiledSteps
from trainer.loop.reporter import Reporter
from trainer.loop.rollback import Rollback, Skipped
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.schedule import (
    Epochs,
    Length,
    Period,
    PeriodLike,
    Time,
    in_epochs,
    parse_length,
    parse_period,
)
from trainer.loop.training_input import training_input
from trainer.runtime.run_lock import locked
from trainer.runtime.run_paths import check_path, plain
from trainer.step.divergence_guard import Fault
from trainer.step.forms import Form
from trainer.step.logs import DATA_WAIT, MISSES
from trainer.step.reductions.sums import Growth
from trainer.step.trials.prepare import prepare
from trainer.strategy.checks import check_micro_batches
from trainer.values.annotations import (
    NotNegative,
    Positive,
)
from trainer.values.configurable import checked
from trainer.values.keras_values import Callbacks


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


@checked
class Loop:
    """Trains up to a step, many steps a graph call, and fires events.

    A host loop ends at multiples of `steps_per_loop`, and earlier where an
    evaluation or a callback is due, or where an epoch or the run ends. Logging
    waits for the next such boundary. Its steps are made in one graph call, or
    in several if one takes too long. How many depends on a clock, so between
    them happens only what depends on a clock anyway: saving and leaving.

    Args:
        trainer: owns model, data and step.
        steps: the step at which training ends, or the epochs after which it
            does, such as `"3 epochs"`.
        evaluate: whether to evaluate when due and at the end.
        model_dir: where the run lives; `None` writes nothing.
        callbacks: see `trainer.Callback` for the order of events.
        steps_per_loop: the most steps in one host loop.
        log_every: the period of training logs, such as `100` or `"1 epoch"`.
        eval_every: the period of evaluations; `None` means each epoch, or
            only at the end where epochs are not known. A dict has the period
            of each split that is evaluated; by default that is `"eval"`.
        eval_steps: batches in an evaluation; `None` means all.
        loop_seconds: graph calls that take longer are halved from then on,
            because a run can only leave between two of them.
        max_time: training ends at the next boundary once the run has trained
            this long, in all of its attempts.
        profile: the steps to trace, see `trainer.loop.profiler`.
        fit: begins epochs of its own, as `Trainer.fit` does; `steps` is then
            not used.
        verbose: what callbacks that show progress are given as their
            `verbose`.

    Attributes:
        steps: the step at which training ends.
        steps_per_epoch: `None` if it is not known.
        callbacks: of this run.
        measured: the batches of each split that is evaluated; `None` is all.
        reporter: evaluates, logs and ends epochs.
        form: gives steps their compiled form; `None` before it is known.
        state: where the loop is, as checkpoints hold it.
        save_now: in `on_save`, whether a checkpoint was requested.
        has_ended: whether it is over, and without an error.
        is_fit: whether it has epochs of its own, as `Trainer.fit` makes them.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        trainer: RunningTrainer,
        *,
        steps: Length,
        evaluate: bool,
        model_dir: str | None = None,
        callbacks: Callbacks = (),
        steps_per_loop: Positive = 100,
        log_every: PeriodLike = 100,
        eval_every: EvalEvery | None = None,
        eval_steps: Positive | None = None,
        loop_seconds: NotNegative = 15.0,
        max_time: Time | None = None,
        profile: ProfiledSteps | None = None,
        fit: FitEpochs | None = None,
        verbose: int = 1,
    ) -> None:
        self.trainer = trainer
        self._verbose = verbose
        self._max_time = max_time
        # First: wrong arguments of the Trainer show before data is read.
        trainer.build()
        self.batches = trainer.batches("train")
        check_micro_batches(
            trainer.model,
            self.batches.last_size,
            accumulation_steps=trainer.accumulation_steps,
        )
        self.epochs, self.steps = self._length(steps, fit)
        self.steps_per_epoch = self.epochs.steps
        # How many batches the data is ahead of the steps.
        self._ahead = 0 if fit is None else self._fresh_pass()
        self.callbacks = CallbackList(callbacks, trainer)
        periods = sets_of(eval_every) if evaluate else {}
        self.measured = dict.fromkeys(periods, eval_steps)
        self.reporter = Reporter(
            trainer,
            self.callbacks,
            log=self.period(log_every, "log_every"),
            evaluations={
                split: self._eval_period(split, every)
                for split, every in periods.items()
            },
            measured=self.measured,
            epochs=self.epochs,
            evaluates_at_end=fit is None,
        )
        trainer.check_data(self.batches)
        for split in self.sets:
            # Errors there show before training.
            batches = trainer.batches(split)
            name = "eval_steps" if fit is None else "validation_steps"
            count_of(batches, self.measured[split], name=name)
            trainer.check_data(batches)
        self.state = LoopState(
            steps=self.steps,
            steps_per_loop=self._length_of_loop(steps_per_loop),
            configuration=trainer.plugin.facts.get("configuration"),
            reporter=self.reporter,
            callbacks=self.callbacks,
            control=trainer.control,
            accounts=trainer.accounts,
            model=trainer.model,
            max_time=max_time,
        )
        self.save_now = False
        self.has_ended = False
        self._rollback: Rollback | None = None
        self._iterator: Any = None
        self._calls = Calls(trainer.accounts, longest_seconds=loop_seconds)
        # The loop of the previous call of `train`, unless that call failed.
        last = trainer.loop
        # Each call of `fit` is on its own: neither its epochs nor what its
        # callbacks have counted are those of the run.
        self.is_fit = fit is not None
        goes_on = (
            last is not None
            and last.has_ended
            and not (self.is_fit or last.is_fit)
        )
        self._last = last if goes_on and last.epochs == self.epochs else None
        self.form: CompiledForm | None = last.form if last else None
        # From here on callbacks and checkpoints see this loop.
        trainer.loop = self
        trainer.state.host = self.state
        if model_dir is not None:
            model_dir = plain(model_dir)
            check_path(model_dir)
        trainer.model_dir = model_dir
        self._profiler = Profiler(
            profile,
            is_chief=trainer.plugin.is_chief,
            model_dir=model_dir,
            last_step=self.steps,
        )

    def period(self, value: PeriodLike, name: str) -> Period:
        """Parses a period of this run; see `trainer.parse_period`."""
        period = parse_period(
            value,
            name=name,
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.steps - self.epochs.begin,
        )
        return dataclasses.replace(period, begin=self.epochs.begin)

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
                per_epoch, begin=self.trainer.step, first=fit.initial_epoch
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
        begin, length = self.epochs.begin, self.batches.steps_per_epoch
        # What is shuffled here gets an order that no earlier pass had. A
        # dataset's order is its own, and to pass over batches takes time.
        if self.batches.resume is Resume.SEEK and length:
            return -begin % length
        return -begin

    @property
    def sets(self) -> tuple[str, ...]:
        """The splits that are evaluated."""
        return tuple(self.measured)

    @property
    def epoch(self) -> int:
        """The number of complete epochs; zero while epochs are not known."""
        return self.reporter.epoch_of(self.trainer.step)

    @property
    def fired_step(self) -> int:
        """The last step at which everything that was due has been called."""
        left_at = self.state.unfired_from
        return self.trainer.step if left_at is None else left_at

    @property
    def is_ending(self) -> bool:
        """Whether no further step is wanted."""
        return self.trainer.step >= self.steps or self.state.is_stopped

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
        trainer = self.trainer
        if trainer.spec.guard is not None:
            self._rollback = Rollback(
                trainer.spec.guard,
                trainer,
                self.callbacks,
                batch_size=self.batches.batch_size,
            )
        # Requests of an earlier call of `train` are not for this one.
        trainer.control.clear()
        trainer.model.stop_training = False
        # Only the chief writes, so only the chief takes the run's lock.
        writes_to = trainer.model_dir if trainer.plugin.is_chief else None
        with locked(writes_to) as self._check_lock:
            try:
                if writes_to is not None:
                    Skipped(writes_to, self.batches.batch_size).mend()
                self._attach()
                if self._last is not None:
                    self.state.continue_from(
                        self._last.state,
                        step=trainer.step,
                        evaluates=bool(self.measured),
                    )
                self._last = None
                # Here a callback restores the newest checkpoint.
                self.callbacks.call("setup")
                # All processes must have restored the same step, or their
                # collectives would not meet.
                trainer.state.check_alike()
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
        trainer = self.trainer
        trainer.accounts.started()
        self._begin()
        # A fault in the very first steps must have something to go back to.
        if self._rollback and self._rollback.needs_a_checkpoint:
            self.save_now = True
            logs = dict(self.reporter.logs)
            self.callbacks.call("on_save", trainer.step, logs)
        # The run was complete before: only its evaluation is returned.
        if self.sets and self.fired_step >= self.steps:
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
        self.has_ended = True
        return dict(self.reporter.logs)

    def _begin(self) -> None:
        # A Keras callback's `on_train_begin` may reset variables that the
        # checkpoint holds: in a resumed run they are put back.
        resumed = self.reporter.begun_epoch is not None
        if resumed and self.callbacks.keras_has("on_train_begin"):
            with self.trainer.state.unchanged():
                self.callbacks.begin()
        else:
            self.callbacks.begin()

    def _attach(self) -> None:
        epochs = None
        if self.steps_per_epoch:
            steps = self.steps - self.epochs.begin
            epochs = self.epochs.first - (-steps // self.steps_per_epoch)
        # As in `fit`; verbose 0, because progress is shown by a callback of
        # ours.
        self.callbacks.attach(
            self.trainer.model,
            {"verbose": 0, "epochs": epochs, "steps": self.steps_per_epoch},
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
        with self.trainer.accounts.phase("compile"):
            return self._trace()

    def _trace(self, iterator: Any = None) -> Any:
        trainer = self.trainer
        trainer.follow_trainable()
        prepare(trainer.spec, training=True)
        self.form = CompiledForm(
            trainer, self.batches, last=self.form, compared=self.state.compared
        )
        self.form.take()
        # Restored sums of metrics wait for this: by now `prepare` has said how
        # each metric is measured, and no trial is to come.
        for totals in self.reporter.totals.values():
            totals.give_states()
        if iterator is None or trainer.compiled_form is Form.XLA_STACK:
            iterator = training_input(
                trainer, self.batches, start=trainer.step + self._ahead
            )
        trainer.train_runner.trace(iterator)
        # The step checks this when it is traced, but an earlier call of
        # `train`, which did not save, may have traced it.
        if self.callbacks.save:
            trainer.parts.untracked.require_nothing_lost()
        measured = self._measured()
        evaluated = {*measured, *trainer.parts.metrics.measures}
        check_unambiguous(self.sets, evaluated)
        check_monitored(
            self.callbacks.all,
            measured=measured,
            evaluated=evaluated,
            sets=self.sets,
            # What runs as Python shows its values only once it has run.
            may_add=trainer.spec.has_own("eval_step")
            or trainer.spec.run_eagerly,
        )
        # A resumed run has evaluated before, so nothing new can be wrong: it
        # traces when an evaluation is due.
        if not trainer.step:
            for split in self.sets:
                trainer.trace_evaluation(split)
        return iterator

    def _measured(self) -> set[str]:
        """The names of the values that a training step gives."""
        layout = getattr(self.trainer.train_runner, "layout", None)
        traced = [] if layout is None else layout.names
        rates = self.trainer.learning_rates()
        measures = self.trainer.spec.parts.metrics.measures
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
        for totals in self.reporter.totals.values():
            totals.load_state(totals.state())
        with self.trainer.accounts.phase("compile"):
            self._iterator = self._trace(self._iterator)

    def _train(self) -> None:
        """Trains to the end, going back as often as the guard says so."""
        while (fault := self._train_on()) is not None:
            with self.trainer.accounts.phase("lost"):
                assert self._rollback is not None
                self._rollback.go_back(fault)
                # A new input from the restored step on, without the batch at
                # fault. Where batches have no number, the input just goes on.
                if self.trainer.plugin.options.batches_by_step:
                    self._iterator = self._trace()

    def _train_on(self) -> Fault | None:
        """Trains to the end, or up to a step that the guard finds bad."""
        trainer, begin = self.trainer, self.fired_step
        if begin >= self.steps:
            return None
        if begin == trainer.step:
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
        stopping = begin < trainer.step and self._after_steps(begin)
        checked_for = None
        while trainer.step < self.steps and not stopping:
            if checked_for != self.reporter.begun_epoch:
                # Once an epoch: looking through a large model takes a while.
                trainer.check_still_trainable()
                checked_for = self.reporter.begun_epoch
            first = trainer.step
            assert self.form is not None
            if self.form.is_due(first):
                self._change_form()
            fault = self._run_steps(self._next_boundary(first))
            if fault is not None:
                return fault
            stopping = self._after_steps(first)
        # Without epochs the whole run is one, which ends here.
        if self.steps_per_epoch is None:
            self.callbacks.call("on_epoch_end", 0, dict(self.reporter.logs))
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
        trainer = self.trainer
        # A run that left within a host loop has begun its batch already.
        if not self.state.is_within:
            # Keras numbers batches from the beginning of the epoch.
            in_epoch = self._in_epoch(trainer.step)
            self.callbacks.call("on_train_batch_begin", in_epoch, {})
            self.state.is_within = True
        self._profiler.before(trainer.step)
        while True:
            count = min(self.state.steps_per_call, end - trainer.step)
            with self._profiler.call(trainer.step):
                fault = self._call(count)
            if fault is not None:
                self.state.is_within = False
                return fault
            if trainer.step >= end:
                break
            self._between_calls()
        self.state.is_within = False
        if self._profiler.is_over(trainer.step):
            self.reporter.epoch_values()  # Waits for the device.
            self._profiler.stop()
        # Computing values waits for the device: only if a callback reads them.
        wanted = self.callbacks.wants_batch_logs
        logs = self.reporter.epoch_values() if wanted else {}
        last = self._in_epoch(end - 1)
        self.callbacks.call("on_train_batch_end", last, logs)
        return None

    def _in_epoch(self, step: int) -> int:
        return (step - self.epochs.begin) % (self.steps_per_epoch or self.steps)

    def _call(self, count: int) -> Fault | None:
        """One graph call; returns what the guard found."""
        trainer = self.trainer
        begin = time.perf_counter()
        with trainer.accounts.phase("step"):
            before = self.reporter.sums
            after = trainer.train_runner(self._iterator, count, before)
            trainer.step += count
            # Reading the fault waits for the device. Without a guard, the next
            # call can be prepared while this one runs.
            watch = trainer.parts.watch
            fault = None if watch is None else watch.fault()
            if MISSES in after[0].layout:
                self._require_no_miss(Growth(MISSES, before[0], after[0]))
            seconds = time.perf_counter() - begin
            self.reporter.take(after, seconds=seconds)
        # Only noted here: reading it would wait for the device.
        waited = Growth(DATA_WAIT, before[0], after[0])
        self._calls.book(count, seconds=seconds, waited=waited)
        return fault

    def _require_no_miss(self, misses: Growth) -> None:
        """Does what XLA leaves out; waits for the device.

        Raises:
            UserError: a lookup had a number without a row.
        """
        count = int(float(misses))
        if count:
            raise UserError(
                f"The batches up to step {self.trainer.step} hold numbers "
                f"({count}) that are out of bounds of a lookup: "
                f"{'; '.join(self.trainer.spec.lookups.found)}. Nothing after "
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
            self.save_now = requests.save
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
        return self.trainer.control.agree(
            self.trainer.plugin,
            stopped=self.state.is_stopped,
            shorter=shorter,
        )

    def _check_time(self) -> None:
        """Stops a run that has trained for `max_time`."""
        if self._max_time is None or self.trainer.stop_reason is not None:
            return
        limit = parse_period(self._max_time, name="max_time").seconds
        if limit is not None and self.reporter.training_seconds >= limit:
            self.trainer.stop(f"max_time = {self._max_time!r} is over")

    def _save(self, *, only_savers: bool = False) -> None:
        logs = dict(self.reporter.logs)
        event = "on_save", self.trainer.step, logs
        if only_savers:
            self.callbacks.call_savers(*event)
        else:
            self.callbacks.call(*event)
        if self.save_now:
            self.trainer.control.save_requested = False

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
        self.save_now = requests.save
        ending = self.trainer.step >= self.steps or requests.stop
        try:
            self.reporter.fire(first, ending=ending)
        except Interrupted:
            self._leave(first)
        self.state.unfired_from = None
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
        self.state.unfired_from = unfired_from
        control, plugin = self.trainer.control, self.trainer.plugin
        reason = control.why_restart(plugin) or "another process has to leave"
        # The savers' last chance: the machine may be gone in seconds.
        self.callbacks.call("on_leave", self.trainer.step)
        self.reporter.logged.warn_of_lost()
        self.has_ended = True
        raise StartAgain(f"{reason}; left at step {self.trainer.step}")

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
            # Without epochs, evaluation is due only at the end.
            return Period(steps=self.steps_per_epoch, begin=self.epochs.begin)
        name = "eval_every" if split == EVAL else f"eval_every[{split!r}]"
        period = self.period(every, name)
        # As in Keras: every n-th by their numbers, not from the first one on.
        earlier = self.epochs.first * (self.steps_per_epoch or 0)
        return dataclasses.replace(period, begin=period.begin - earlier)
