"""The host loop: how many steps until something is due, in what order.

A long file, but a single one, so that the order of events can be read from top
to bottom.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from absl import logging

from trainer.errors import StartAgain
from trainer.loop.call_times import Calls
from trainer.loop.callback_list import CallbackList
from trainer.loop.control import Requests
from trainer.loop.evaluator import Interrupted
from trainer.loop.form_choice import STEPS_PER_LOOP, Choice, choose
from trainer.loop.loop_state import LoopState
from trainer.loop.reporter import Reporter
from trainer.loop.rollback import Rollback, Skipped
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.schedule import Period, PeriodLike, parse_period
from trainer.loop.training_input import training_input
from trainer.runtime.local_files import check_path, plain
from trainer.runtime.run_lock import locked
from trainer.step.divergence_guard import Fault
from trainer.step.logs import DATA_WAIT
from trainer.step.reductions.sums import Growth
from trainer.step.trials.prepare import prepare
from trainer.strategy.checks import check_micro_batches
from trainer.values.annotations import NotNegative, Positive, StepsPerLoop
from trainer.values.configurable import checked
from trainer.values.keras_values import Callbacks


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
        steps: the step at which training ends.
        evaluate: whether to evaluate when due and at the end.
        model_dir: where the run lives; `None` writes nothing.
        callbacks: see `trainer.Callback` for the order of events.
        steps_per_loop: the most steps in one host loop; `"auto"` takes more
            than 100 where steps are found to be fast and logs are rarer.
        log_every: the period of training logs, such as `100` or `"1 epoch"`.
        eval_every: the period of evaluations; `None` means each epoch, or
            only at the end where epochs are not known.
        eval_steps: batches in an evaluation; `None` means all.
        loop_seconds: graph calls that take longer are halved from then on,
            because a run can only leave between two of them.
        form_cache: whether the compiled form that an equal run on this
            machine has found to be the fastest is taken without measuring.

    Attributes:
        steps: the step at which training ends.
        steps_per_epoch: `None` if it is not known.
        callbacks: of this run.
        reporter: evaluates, logs and ends epochs.
        state: where the loop is, as checkpoints hold it.
        save_now: in `on_save`, whether a checkpoint was requested.
        has_ended: whether it is over, and without an error.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        trainer: RunningTrainer,
        *,
        steps: Positive,
        evaluate: bool,
        model_dir: str | None = None,
        callbacks: Callbacks = (),
        steps_per_loop: StepsPerLoop = "auto",
        log_every: PeriodLike = 100,
        eval_every: PeriodLike | None = None,
        eval_steps: Positive | None = None,
        loop_seconds: NotNegative = 15.0,
        form_cache: bool = True,
    ) -> None:
        self.steps = steps
        self.evaluate = evaluate
        self.trainer = trainer
        # First: wrong arguments of the Trainer show before data is read.
        trainer.build()
        self.batches = trainer.batches("train")
        check_micro_batches(
            trainer.model,
            self.batches.last_size,
            accumulation_steps=trainer.accumulation_steps,
        )
        # A dataset of unknown length is counted, but no further than needed.
        self.batches.learn_length(at_most=steps)
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.callbacks = CallbackList(callbacks, trainer)
        evaluation = self._eval_period(eval_every)
        self.reporter = Reporter(
            trainer,
            self.callbacks,
            log=self.period(log_every, "log_every"),
            evaluation=evaluation if evaluate else None,
            eval_steps=eval_steps,
            steps_per_epoch=self.steps_per_epoch,
        )
        if evaluate:
            trainer.batches("eval")  # Errors there show before training.
        self._is_auto = steps_per_loop == "auto"
        self.state = LoopState(
            steps=steps,
            steps_per_loop=STEPS_PER_LOOP
            if steps_per_loop == "auto"
            else steps_per_loop,
            configuration=trainer.plugin.facts.get("configuration"),
            reporter=self.reporter,
            callbacks=self.callbacks,
            control=trainer.control,
            accounts=trainer.accounts,
            model=trainer.model,
        )
        self.save_now = False
        self.has_ended = False
        self._rollback: Rollback | None = None
        self._iterator: Any = None
        self._calls = Calls(trainer.accounts, longest_seconds=loop_seconds)
        # The loop of the previous call of `train`, unless that call failed.
        last = trainer.loop
        self._last = last if last is not None and last.has_ended else None
        self._use_cache = form_cache
        # How the steps are compiled: in earlier attempts, and in this one.
        self._there: Choice | None = None  # In the run directory.
        self._recorded: Choice | None = None
        self._of_last = last.choice if last is not None else None
        self.choice: Choice | None = None
        self._is_ready = False
        # From here on callbacks and checkpoints see this loop.
        trainer.loop = self
        trainer.state.host = self.state
        if model_dir is not None:
            model_dir = plain(model_dir)
            check_path(model_dir)
        trainer.model_dir = model_dir

    def period(self, value: PeriodLike, name: str) -> Period:
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
                self._take_record()
                if self._last is not None:
                    self.state.continue_from(
                        self._last.state,
                        step=trainer.step,
                        evaluates=self.evaluate,
                    )
                self._last = None
                # Here a callback restores the newest checkpoint.
                self.callbacks.call("setup")
                # All processes must have restored the same step, or their
                # collectives would not meet.
                trainer.state.check_alike()
                # After restoring: the input starts at the restored step.
                self._is_ready = True
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
        self._record_choice()
        self._begin()
        # A fault in the very first steps must have something to go back to.
        if self._rollback and self._rollback.needs_a_checkpoint:
            self.save_now = True
            logs = dict(self.reporter.logs)
            self.callbacks.call("on_save", trainer.step, logs)
        # The run was complete before: only its evaluation is returned.
        if self.evaluate and self.fired_step >= self.steps:
            self.reporter.evaluate_again()
        self._train()
        self._calls.report_waiting()
        self.callbacks.end(dict(self.reporter.logs))
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
            epochs = -(-self.steps // self.steps_per_epoch)
        # As in `fit`; verbose 0, because progress is shown by a callback of
        # ours.
        self.callbacks.attach(
            self.trainer.model,
            {"verbose": 0, "epochs": epochs, "steps": self.steps_per_epoch},
        )

    def try_steps(self, count: int) -> float:
        """Makes steps of a run that is `ready`, and calls nobody for them.

        Returns:
            The seconds that they took.
        """
        begin = time.perf_counter()
        self._call(self._iterator, count)
        self.reporter.epoch_values()  # Waits for the device.
        return time.perf_counter() - begin

    def trace(self) -> Any:
        """Builds every graph of a new run, so that errors show early.

        Returns:
            The training input, at the trainer's step.
        """
        with self.trainer.accounts.phase("compile"):
            return self._trace()

    def _trace(self) -> Any:
        trainer = self.trainer
        trainer.follow_trainable()
        prepare(trainer.spec, training=True)
        # Restored sums of metrics wait for this: by now `prepare` has said how
        # each metric is measured.
        for totals in self.reporter.totals.values():
            totals.give_states()
        if self.choice is None:
            self._choose()
        iterator = training_input(trainer, self.batches, start=trainer.step)
        trainer.train_runner.trace(iterator)
        # The step checks this when it is traced, but an earlier call of
        # `train`, which did not save, may have traced it.
        if self.callbacks.save:
            trainer.parts.untracked.require_nothing_lost()
        # A resumed run has evaluated before, so nothing new can be wrong: it
        # traces when an evaluation is due.
        if self.evaluate and not trainer.step:
            trainer.trace_evaluation()
        return iterator

    def _take_record(self) -> None:
        """Takes the choice of an earlier attempt, or of the last call."""
        self._there = Choice.read(self.trainer.model_dir)
        self._recorded = self._there or self._of_last
        if self._recorded is not None:
            self._take_length(self._recorded)

    def _choose(self) -> None:
        """Chooses how the steps are compiled, once."""
        self.choice = choose(
            self.trainer,
            self.batches,
            steps=self.steps,
            recorded=self._recorded,
            use_cache=self._use_cache,
            # Without `ready` no steps are made.
            may_measure=self._is_ready,
        )
        self.trainer.use_form(self.choice.form)
        self._take_length(self.choice)

    def _take_length(self, choice: Choice) -> None:
        if not self._is_auto:
            return
        # Logs come as often as they are asked for, and no step at which a
        # callback of Keras acts depends on a clock.
        most = self.reporter.tickers["log"].period.steps
        if self.callbacks.keras_has("on_train_batch_end"):
            most = STEPS_PER_LOOP
        length = choice.steps_per_loop
        self.state.take_length(min(length, most or length))

    def _record_choice(self) -> None:
        """Logs how the steps are compiled, and writes it down."""
        choice, trainer = self.choice, self.trainer
        assert choice is not None
        writes_to = trainer.model_dir if trainer.plugin.is_chief else None
        if writes_to is not None and choice != self._there:
            choice.write(writes_to)
        if choice == self._recorded:
            return
        rates = ", ".join(
            f"{form} {rate:g}" for form, rate in choice.steps_per_second.items()
        )
        logging.info(
            "The step is compiled as %s, because %s%s; host loops of up to %d "
            "steps.",
            choice.form,
            choice.why,
            f" (steps a second: {rates})" if rates else "",
            self.state.steps_per_loop,
        )

    def _train(self) -> None:
        """Trains to the end, going back as often as the guard says so."""
        while (fault := self._train_on(self._iterator)) is not None:
            with self.trainer.accounts.phase("lost"):
                assert self._rollback is not None
                self._rollback.go_back(fault)
                # A new input from the restored step on, without the batch at
                # fault. Where batches have no number, the input just goes on.
                if self.trainer.plugin.options.batches_by_step:
                    self._iterator = self._trace()

    def _train_on(self, iterator: Any) -> Fault | None:
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
            fault = self._run_steps(iterator, self._next_boundary(first))
            if fault is not None:
                return fault
            stopping = self._after_steps(first)
        # Without epochs the whole run is one, which ends here.
        if self.steps_per_epoch is None:
            self.callbacks.call("on_epoch_end", 0, dict(self.reporter.logs))
        return None

    def _run_steps(self, iterator: Any, end: int) -> Fault | None:
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
            in_epoch = trainer.step % (self.steps_per_epoch or self.steps)
            self.callbacks.call("on_train_batch_begin", in_epoch, {})
            self.state.is_within = True
        while True:
            count = min(self.state.steps_per_call, end - trainer.step)
            fault = self._call(iterator, count)
            if fault is not None:
                self.state.is_within = False
                return fault
            if trainer.step >= end:
                break
            self._between_calls()
        self.state.is_within = False
        # Computing values waits for the device: only if a callback reads them.
        wanted = self.callbacks.wants_batch_logs
        logs = self.reporter.epoch_values() if wanted else {}
        last = (end - 1) % (self.steps_per_epoch or self.steps)
        self.callbacks.call("on_train_batch_end", last, logs)
        return None

    def _call(self, iterator: Any, count: int) -> Fault | None:
        """One graph call; returns what the guard found."""
        trainer = self.trainer
        begin = time.perf_counter()
        with trainer.accounts.phase("step"):
            before = self.reporter.sums
            after = trainer.train_runner(iterator, count, before)
            trainer.step += count
            # Reading the fault waits for the device. Without a guard, the next
            # call can be prepared while this one runs.
            watch = trainer.parts.watch
            fault = None if watch is None else watch.fault()
            seconds = time.perf_counter() - begin
            self.reporter.take(after, seconds=seconds)
        # Only noted here: reading it would wait for the device.
        waited = Growth(DATA_WAIT, before[0], after[0])
        self._calls.book(count, seconds=seconds, waited=waited)
        return fault

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
        return self.trainer.control.agree(
            self.trainer.plugin,
            stopped=self.state.is_stopped,
            shorter=shorter,
        )

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
        self.has_ended = True
        raise StartAgain(f"{reason}; left at step {self.trainer.step}")

    def _next_boundary(self, step: int) -> int:
        # Multiples of steps_per_loop, not steps from here: boundaries are the
        # same in a run that was resumed in between.
        ends = [
            self.steps,
            Period(steps=self.state.steps_per_loop).next_step(step),
            self.callbacks.next_due(step),
            self.reporter.next_step(step),
        ]
        return min(end for end in ends if end is not None)

    def _eval_period(self, eval_every: PeriodLike | None) -> Period:
        if eval_every is None:
            # Without epochs, evaluation is due only at the end.
            return Period(steps=self.steps_per_epoch)
        return self.period(eval_every, "eval_every")
