"""The host loop: how many steps until something is due, in what order.

A long file, but a single one, so that the order of events can be read from top
to bottom.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from trainer.errors import StartAgain, UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.compiled_form import CompiledForm, training_input
from trainer.loop.evaluation_sets import sets_of
from trainer.loop.evaluator import Interrupted, count_of
from trainer.loop.loop_state import LoopState
from trainer.loop.monitor import check_names
from trainer.loop.reporter import Reporter
from trainer.loop.rollback import Rollback, read_skipped
from trainer.loop.run import Requests, Run
from trainer.loop.schedule import FitEpochs, fresh_pass, length_of
from trainer.run_options import RunOptions
from trainer.runtime.run_lock import locked
from trainer.runtime.run_paths import check_path, plain
from trainer.step.divergence_guard import Fault
from trainer.step.forms import Form
from trainer.step.logs import MISSES
from trainer.step.prepare import prepare
from trainer.values.periods import Period, parse_period


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
        state: where the loop is, as checkpoints hold it.
        form: gives steps their compiled form.

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
        self._options = options
        self.batches = run.batches("train")
        # `_ahead` is how many batches the data is ahead of the steps.
        if fit is None:
            run.epochs, self.steps = length_of(
                self.batches, options.train_steps
            )
            self._ahead = 0
        else:
            run.epochs, self.steps = fit.length(self.batches, begin=run.step)
            self._ahead = fresh_pass(self.batches, begin=run.step)
        run.steps = self.steps
        self.callbacks = CallbackList(options.callbacks, run)
        run.saves = bool(self.callbacks.savers)
        run.keras_ends = self.callbacks.keras_has("on_train_end")
        periods = sets_of(options.eval_every) if evaluate else {}
        run.sets = tuple(periods)
        self.reporter = Reporter(
            run,
            self.callbacks,
            log=run.period(options.log_every, "log_every"),
            evaluations={
                split: run.evaluation_period(split, every)
                for split, every in periods.items()
            },
            eval_steps=options.eval_steps,
            evaluates_at_end=fit is None,
        )
        self._check_data("eval_steps" if fit is None else "validation_steps")
        self.state = LoopState(
            run,
            options,
            reporter=self.reporter,
            callbacks=self.callbacks,
            is_fit=fit is not None,
        )
        self.form = CompiledForm(
            run, self.batches, compared=self.state.compared
        )
        self._rollback: Rollback | None = None
        # Whether this call traces again, once callbacks have set up.
        self._traces_again = self.callbacks.set_up
        self._known = set(run.built.runners)
        self._iterator: Any = None
        # Of the fastest graph call, as a single delay does not make steps slow;
        # the first one after a trace includes what is left to compile.
        self._seconds_per_step = 0.0
        self._is_first_call = True
        # From here on checkpoints see this loop, and the next one may continue
        # from it once it has ended well.
        self._last, run.built.last = run.built.last, None
        run.state.host = self.state
        if run.model_dir is not None:
            run.model_dir = plain(run.model_dir)
            check_path(run.model_dir)

    def _check_data(self, name: str) -> None:
        """Checks all data; `name` is that of the batches of an evaluation."""
        run = self._run
        run.check_data(self.batches)
        for split in run.sets:
            # Errors there show before training.
            batches = run.batches(split)
            count_of(batches, self._options.eval_steps, name=name)
            run.check_data(batches)

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
                # Before anything reads what is in it.
                read_skipped(writes_to, sets_aside=True)
                self._attach()
                if self._last is not None:
                    self.state.continue_from(self._last)
                self._last = None
                # Here a callback restores the newest checkpoint.
                self.callbacks.call("setup")
                # All processes must have restored the same step, or their
                # collectives would not meet.
                run.state.check_alike()
                run.check_alike()
                # After restoring: the input starts at the restored step.
                self._iterator = self._trace()
                yield
            finally:
                # On every exit: no thread or file of a callback may outlive the
                # run.
                self.callbacks.close()
                self._iterator = run.take_value = None

    def train(self) -> dict[str, float]:
        """Trains a run that is `ready`; see `run`."""
        run = self._run
        with run.accounts.training():
            self._begin()
            # A fault in the very first steps must have something to go back
            # to.
            if self._rollback and self._rollback.needs_a_checkpoint:
                run.save_now = True
                logs = dict(self.reporter.logs)
                self.callbacks.call("on_save", run.step, logs)
            # The run was complete before: only its evaluation is returned.
            if run.sets and run.fired_step >= self.steps:
                try:
                    self.reporter.evaluate_again()
                except Interrupted:
                    self._leave(run.unfired_from)
            self._train()
            logs = dict(self.reporter.logs)
            self.callbacks.call_savers("before_end", logs)
            self.callbacks.end(
                logs,
                # As `fit` does.
                of_epoch=self.reporter.of_epoch or logs,
                before_savers=self.reporter.hand_over,
            )
            self.callbacks.call("on_done")
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
        epochs, of = None, self._run.epochs
        if of.steps:
            epochs = of.first - (-(self.steps - of.begin) // of.steps)
        # As in `fit`; verbose 0, because progress is shown by a callback of
        # ours.
        self.callbacks.attach(
            self._run.model,
            {"verbose": 0, "epochs": epochs, "steps": of.steps},
        )
        for callback in self.callbacks.ours:
            callback.verbose = self._verbose

    def try_steps(self, count: int, faults: list[str]) -> float:
        """Makes steps of a run that is `ready`, and calls no callback for them.

        Args:
            count: how many.
            faults: gets a description of each fault that the guard finds, if
                it would not end the run.

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
            story, *_ = self._rollback.judge(fault, earlier=len(faults))
            faults.append(f"{story}. A run would roll back.")
        return seconds

    def _trace(self, iterator: Any = None) -> Any:
        """Builds every graph of a new run, so that errors show early.

        Args:
            iterator: the training input, if there is one already.

        Returns:
            The training input, at the trainer's step.
        """
        run = self._run
        with run.accounts.phase("compile"):
            run.follow_trainable()
            prepare(run.spec, training=True)
            self.form.take()
            if iterator is None or run.spec.form is Form.XLA_STACK:
                iterator = training_input(
                    run, self.batches, start=run.step + self._ahead
                )
            # Where nothing is written, nothing has to be refused before
            # callbacks are called.
            if not self._traces_again or run.model_dir is not None:
                self._trace_steps(iterator)
        return iterator

    def _trace_steps(self, iterator: Any) -> None:
        run = self._run
        run.train_runner.trace(iterator)
        self._is_first_call = True
        # The step checks this when it is traced, but an earlier call of
        # `train`, which did not save, may have traced it.
        if run.saves:
            run.parts.untracked.require_nothing_lost()
        check_names(run, self.callbacks.all)
        # A resumed run has evaluated before, so nothing new can be wrong: it
        # traces when an evaluation is due.
        if not run.step:
            for split in run.sets:
                run.evaluator(run.batches(split)).trace()

    def _trace_again(self) -> None:
        """Traces with what callbacks have set in Python, where Keras does."""
        self._traces_again = False
        runners = self._run.built.runners
        for key in runners.keys() - self._known:
            del runners[key]
        with self._run.accounts.phase("compile"):
            self._trace_steps(self._iterator)

    def _train(self) -> None:
        """Trains to the end, going back as often as the guard says so."""
        while (fault := self._train_on()) is not None:
            with self._run.accounts.phase("lost"):
                assert self._rollback is not None
                self._rollback.go_back(fault)
                # A new input from the restored step on, without the batch at
                # fault. Where batches have no number, the input just continues.
                if self._run.plugin.options.batches_by_step:
                    self._iterator = self._trace()

    def _train_on(self) -> Fault | None:
        """Trains to the end, or up to a step that the guard finds bad."""
        run, begin = self._run, self._run.fired_step
        if begin >= self.steps:
            return None
        # A request may have come during start-up, or in an earlier attempt
        # that was killed after its last save.
        if begin == run.step and self._agree().stop:
            return None
        # From `begin`, not from the present step: what an earlier attempt left
        # unfired is due now, before the next step.
        self.reporter.start(begin)
        self.reporter.begin_epoch(run.epochs.number(begin))
        # An earlier attempt left after a graph call: first what was due then.
        stopping = begin < run.step and self._after_steps(begin)
        checked_for = None
        while run.step < self.steps and not stopping:
            if checked_for != self.reporter.begun_epoch:
                # Once an epoch: looking through a large model takes a while.
                run.check_still_trainable()
                checked_for = self.reporter.begun_epoch
            first = run.step
            if self.form.is_due(first):
                # As in a run that is resumed here.
                self._iterator = self._trace(self._iterator)
            fault = self._run_steps(self._next_boundary(first))
            if fault is not None:
                return fault
            stopping = self._after_steps(first)
        # Without epochs the whole run is one, which ends here.
        if run.epochs.steps is None:
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
        run, state = self._run, self.state
        # A run that left within a host loop has begun its batch already.
        if not state.is_within:
            # Keras numbers batches from the beginning of the epoch.
            in_epoch = self._in_epoch(run.step)
            self.callbacks.call("on_train_batch_begin", in_epoch, {})
            state.is_within = True
        if self._traces_again:
            self._trace_again()
        while True:
            fault = self._call(min(state.steps_per_call, end - run.step))
            if fault is not None or run.step >= end:
                break
            requests = self._agree_after_call(None)
            # A stop waits for the end of the host loop: a checkpoint from here
            # would hold a stopped run in the middle of it.
            if not requests.stop:
                self._save(requests, only_savers=True)
        state.is_within = False
        if fault is None:
            # Computing values waits for the device: only if a callback reads
            # them.
            wanted = self.callbacks.wants_batch_logs
            logs = self.reporter.epoch_values() if wanted else {}
            last = self._in_epoch(end - 1)
            # Keras takes the last execution of an epoch to be a full one.
            last += -(last + 1) % state.execution
            self.callbacks.call("on_train_batch_end", last, logs)
        return fault

    def _in_epoch(self, step: int) -> int:
        return (step - self._run.epochs.begin) % (
            self._run.epochs.steps or self.steps
        )

    def _call(self, count: int) -> Fault | None:
        """One graph call; returns what the guard found.

        Raises:
            UserError: a lookup had a number without a row.
        """
        run, reporter = self._run, self.reporter
        begin = time.perf_counter()
        ema = run.parts.ema
        steps = contextlib.nullcontext() if ema is None else ema.stepping()
        with run.accounts.phase("step"), steps:
            sums = run.train_runner(self._iterator, count, reporter.sums)
            run.state.step += count
            # Reading the fault waits for the device. Without a guard, the next
            # call can be prepared while this one runs.
            guard = run.parts.guard
            fault = None if guard is None else guard.fault()
            seconds = time.perf_counter() - begin
            reporter.take(sums, seconds=seconds)
            # Does what XLA leaves out; waits for the device, if there is a
            # lookup.
            misses = int(reporter.intervals["interval"].total(MISSES))
        if misses:
            raise UserError(
                f"The batches up to step {run.step} hold numbers ({misses}) "
                "that are out of bounds of a lookup: "
                f"{'; '.join(run.spec.lookups.found)}. Nothing after the last "
                "checkpoint is kept. --jit_compile=graph stops at the number "
                "itself."
            )
        if self._is_first_call:
            run.accounts.move(seconds, source="step", to="compile")
            self._is_first_call = False
        else:
            each = seconds / count
            fastest = self._seconds_per_step or each
            self._seconds_per_step = min(each, fastest)
        return fault

    def _agree_after_call(self, first: int | None) -> Requests:
        """Agrees with the other processes on what comes next.

        Args:
            first: the step before the host loop that has ended, if it has.

        Raises:
            StartAgain: a process has to leave.
            UserError: another run has taken the directory.
        """
        # Another run may have taken the directory while this one was suspended.
        self._check_lock()
        state = self.state
        seconds = self._seconds_per_step * state.steps_per_call
        is_slow = seconds > self._options.loop_seconds
        requests = self._agree(first, shorter=is_slow)
        # Agreed on by all processes, whose graph calls must have equal lengths.
        if requests.shorter and state.steps_per_call > 1:
            state.steps_per_call //= 2
        return requests

    def _agree(
        self, unfired_from: int | None = None, *, shorter: bool = False
    ) -> Requests:
        run, max_time = self._run, self._options.max_time
        if max_time is not None and run.stop_reason is None:
            limit = parse_period(max_time, name="max_time").seconds
            if limit is not None and run.accounts.training_seconds >= limit:
                run.stop(f"max_time = {max_time!r} has passed")
        requests = run.agree(shorter=shorter)
        if requests.restart:
            self._leave(unfired_from)
        return requests

    def _save(self, requests: Requests, *, only_savers: bool = False) -> None:
        run, logs = self._run, dict(self.reporter.logs)
        run.save_now = requests.save
        if only_savers:
            self.callbacks.call_savers("on_save", run.step, logs)
        else:
            self.callbacks.call("on_save", run.step, logs)
        if requests.save:
            run.save_requested = False

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
        run = self._run
        # Leaving comes first: evaluation and logs may take longer than the
        # time that is left. They are due again at the next start.
        requests = self._agree_after_call(first)
        ending = run.step >= self.steps or requests.stop
        try:
            self.reporter.fire(first, ending=ending)
        except Interrupted:
            self._leave(first)
        run.unfired_from = None
        self._save(requests)
        # Again: evaluation and saving took time, and callbacks may request it.
        return self._agree().stop

    def _leave(self, unfired_from: int | None) -> NoReturn:
        """Lets callbacks save, and ends this attempt.

        Args:
            unfired_from: the step before the last host loop, if what is due
                after it has not been called yet.
        """
        run = self._run
        run.unfired_from = unfired_from
        reason = run.why_restart() or "another process has to leave"
        # The savers' last chance: the machine may be gone in seconds.
        self.callbacks.call("on_leave", run.step)
        run.logged.warn_of_lost()
        run.built.last = self.state
        raise StartAgain(f"{reason}; left at step {run.step}")

    def _next_boundary(self, step: int) -> int:
        # Multiples of steps_per_loop, not steps from here: boundaries are the
        # same in a run that was resumed in between.
        begin = step - self._in_epoch(step) if self.state.execution > 1 else 0
        ends = [
            self.steps,
            Period(self.state.steps_per_loop, begin=begin).next_step(step),
            self.callbacks.next_due(step),
            self.reporter.next_step(step),
            self.form.next_change(step),
        ]
        return min(end for end in ends if end is not None)
