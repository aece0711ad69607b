"""`Run`: one call of a Trainer, as loop, evaluations and callbacks share it."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras

from trainer.checkpoint.stateful import RunState
from trainer.data import Batches
from trainer.errors import UserError
from trainer.loop.built import Built
from trainer.loop.control import Control
from trainer.loop.evaluator import Evaluator
from trainer.loop.goodput import Accounts
from trainer.loop.logged import Kind, Logged, Value, as_value, check_words
from trainer.loop.schedule import Epochs
from trainer.step import numerics
from trainer.step.checks import check_data
from trainer.step.forms import Form
from trainer.step.spec import Parts, StepSpec
from trainer.step.train_step import make_train_step
from trainer.strategy.checks import check_trainable
from trainer.strategy.graph_loop import EagerLoop, Runner
from trainer.strategy.plugin import StrategyPlugin
from trainer.values.periods import Period, PeriodLike, parse_period


class Run:
    """One call of `fit`, `train`, `evaluate` or `predict`.

    What the Trainer has built lasts longer; see `trainer.loop.built.Built`. A
    callback has it as `self.run`.

    Args:
        built: plugin, model, optimizers and state.
        spec: what the steps of this call are made of.
        batches: gives the global batches of a split.
        model_dir: where the run lives; `None` writes nothing.

    Attributes:
        built: as given.
        spec: as given, in the form that the steps are compiled in.
        batches: as given.
        model_dir: as given.
        control: what is requested of the run, from any thread.
        logged: what `log` was given, and no logger has taken yet.
        evaluating: the split that is being evaluated, from `on_test_begin` to
            `on_test_end`; else `None`.
        steps: the step at which training ends; `None` where nothing trains.
        epochs: of this call.
        sets: the splits that it evaluates.
        saves: whether a callback saves checkpoints.
        keras_ends: whether a callback of Keras' kind acts in `on_train_end`.
        save_now: in `on_save`, whether a checkpoint was requested.
        unfired_from: the step before the last graph call, if what is due
            after it has not been called yet.
        taken_back: splits that were logged at the present step only because
            it was an earlier end: a run that goes on has no such logs.
        take_value: takes what a callback logs, while there is a reporter.
    """

    def __init__(
        self,
        built: Built,
        spec: StepSpec,
        *,
        batches: Callable[[str], Batches],
        model_dir: str | None = None,
    ) -> None:
        self.built = built
        self.spec = spec
        self.batches = batches
        self.model_dir = model_dir
        self.control = Control()
        self.logged = Logged()
        self.evaluating: str | None = None
        self.steps: int | None = None
        self.epochs = Epochs(None)
        self.sets: tuple[str, ...] = ()
        self.saves = self.keras_ends = False
        self.save_now = False
        self.unfired_from: int | None = None
        self.taken_back: Sequence[str] = ()
        self.take_value: Callable[[str, Value, str | None], None] | None = None
        # The ids of the variables that the traced steps train.
        self._trains = self._trainable()

    # What callbacks use.

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return self.built.state.step

    @step.setter
    def step(self, step: int) -> None:
        """Sets it, as restoring a checkpoint does."""
        self.built.state.step = step

    @property
    def fired_step(self) -> int:
        """The last step at which everything that was due has been called."""
        return self.step if self.unfired_from is None else self.unfired_from

    @property
    def is_ending(self) -> bool:
        """Whether no further step is wanted."""
        over = self.steps is not None and self.step >= self.steps
        return over or self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether this process wants to end training before its last step."""
        stopped = self.control.stop_reason is not None
        return stopped or bool(self.model.stop_training)

    @property
    def evaluated_split(self) -> str:
        """The split whose evaluation is under way; `"eval"` if there is none.

        For callbacks, between `on_test_begin` and `on_test_end`.
        """
        return self.evaluating or "eval"

    @property
    def stop_reason(self) -> str | None:
        """Why training ended early, or is about to; `None` if it did not."""
        return self.control.stop_reason

    @property
    def plugin(self) -> StrategyPlugin:
        """The strategy."""
        return self.built.plugin

    @property
    def parts(self) -> Parts:
        """Model, optimizers, metrics and state variables."""
        return self.built.parts

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self.built.parts.model

    @property
    def state(self) -> RunState:
        """What checkpoints hold."""
        return self.built.state

    @property
    def accounts(self) -> Accounts:
        """Where the time goes."""
        return self.built.accounts

    def stop(self, reason: str) -> None:
        """Ends training at the next boundary of the host loop."""
        self.control.stop_reason = reason

    def save_soon(self) -> None:
        """Saves a checkpoint at the next boundary; from any thread."""
        self.control.save_requested = True

    def start_again(self, reason: str) -> None:
        """Saves at the next boundary and raises `StartAgain`.

        All processes of the run do so at the same step. From any thread.

        Args:
            reason: such as `"SIGTERM"`.
        """
        self.control.restart_reason = reason

    def log(
        self,
        name: str,
        value: Any,
        *,
        kind: Kind | None = None,
        split: str | None = None,
        sample_rate: int | None = None,
    ) -> None:
        """Logs a value of the present step; see `trainer.Trainer.log`.

        Raises:
            UserError: the value cannot be logged, or nothing runs.
        """
        check_words(name, kind=kind)
        if self.take_value is None:
            raise outside_of_a_run(name)
        given = as_value(name, value, kind=kind, sample_rate=sample_rate)
        self.take_value(name, given, split)

    def period(self, value: PeriodLike, name: str) -> Period:
        """Parses a period of this run; see `trainer.parse_period`."""
        period = parse_period(
            value,
            name=name,
            steps_per_epoch=self.epochs.steps,
            total_steps=(self.steps or 0) - self.epochs.begin,
        )
        return dataclasses.replace(period, begin=self.epochs.begin)

    def describe(self) -> str:
        """Strategy, devices, parameters, batch, precision and compiled form."""
        plugin, spec = self.plugin, self.spec
        # Without the job and task, which are long and the same for all.
        devices = [d.rpartition("device:")[2].lower() for d in plugin.devices()]
        shown = ", ".join(devices[:4]) + (", ..." if len(devices) > 4 else "")
        micro = spec.accumulation_steps
        parts = [
            f"strategy {plugin.name} on {shown}",
            f"{self.model.count_params():,} parameters",
            f"batch {spec.batch_size}"
            + (f" in {micro} micro-batches" if micro > 1 else ""),
            self.model.dtype_policy.name,
            "run eagerly" if spec.run_eagerly else f"compiled as {spec.form}",
        ]
        return " | ".join(parts)

    # What the loop and evaluations use.

    def learning_rates(self) -> dict[str, float]:
        """The optimizers' present learning rates."""
        return self.built.learning_rates()

    def use_form(self, form: Form) -> None:
        """Compiles the steps in another form from now on."""
        self.spec = dataclasses.replace(self.spec, form=form)

    @property
    def train_runner(self) -> Runner:
        """The loop of training steps, traced once for all calls that are alike.

        A call of another form, batch size or class weights, or that trains
        other variables, has one of its own.
        """
        spec = self.spec
        weights = tuple(sorted((spec.class_weight or {}).items()))
        key = "train", spec.form, spec.batch_size, weights, self._trains
        return self.runner(key, self._make_train_runner)

    def _make_train_runner(self) -> Runner:
        step = make_train_step(self.spec)
        if self.spec.check_numerics:
            step = numerics.checked(step, self.spec)
        if self.spec.run_eagerly:
            return EagerLoop(
                step, self.plugin.strategy, needs_graph=self.spec.saves
            )
        if self.spec.form is Form.XLA_STACK:
            return self.plugin.stack_runner(step)
        return self.plugin.runner(step, training=True)

    def evaluator(self, batches: Batches) -> Evaluator:
        """Measures batches; data of one structure and size shares a trace."""
        key = str(batches.element_spec), batches.batch_size, self._trains
        made: Evaluator = self.runner(
            ("evaluate", *key), lambda: Evaluator(self.spec, self.plugin)
        )
        made.take(batches)
        return made

    def runner(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Keeps what has been traced, for later calls."""
        runners = self.built.runners
        if key not in runners:
            runners[key] = make()
        return runners[key]

    def check_data(self, batches: Batches) -> None:
        """Checks once that batches fit the model and its losses.

        Raises:
            UserError: they do not.
        """
        if batches not in self.built.checked:
            check_data(self.spec, batches)
            self.built.checked.add(batches)

    def follow_trainable(self) -> None:
        """Lets the steps train what is trainable now.

        Raises:
            UserError: a layer has become trainable since it was built.
        """
        check_trainable(
            self.model,
            self.parts.trained,
            own_step=self.spec.has_own("train_step"),
        )
        self._trains = self._trainable()

    def check_still_trainable(self) -> None:
        """Checks that the steps train what they were traced for.

        Raises:
            UserError: a callback has changed what is trainable.
        """
        if self._trains != self._trainable():
            raise UserError(
                "A callback has changed which layers are trainable, but the "
                "steps of this call of train were traced before. Change it "
                "between two calls of train, or in the model function."
            )

    def _trainable(self) -> tuple[int, ...]:
        return tuple(id(one) for one in self.model.trainable_variables)


def outside_of_a_run(name: str) -> UserError:
    """The error of a value that is logged while nothing runs."""
    return UserError(
        f"trainer.log({name!r}, ...) was called outside of a run. Call it in a "
        "callback, or in what a step calls."
    )
