"""`Run`: one call of a Trainer, as loop, evaluations and callbacks share it."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.data.batches import Batches
from trainer.errors import UserError
from trainer.loop.built import Built
from trainer.loop.evaluation_sets import EVAL
from trainer.loop.evaluator import Evaluator
from trainer.loop.logged import Kind, Logged, Value, as_value, check_words
from trainer.loop.schedule import Epochs
from trainer.runtime import files, fingerprints
from trainer.runtime.run_lock import holder
from trainer.step.checks import check_data
from trainer.step.forms import Form
from trainer.step.spec import StepSpec
from trainer.step.train_step import make_train_step
from trainer.strategy.checks import check_trainable
from trainer.strategy.graph_loop import EagerLoop, GraphLoop
from trainer.values.periods import Period, PeriodLike, parse_period


class Requests(NamedTuple):
    """The requests of any process of the run; equal in all of them.

    Attributes:
        stop: end training here.
        save: save a checkpoint.
        restart: save and leave, to be started again.
        shorter: make the graph calls shorter.
    """

    stop: bool
    save: bool
    restart: bool
    shorter: bool


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
        plugin: the strategy.
        parts: model, optimizers, metrics and state variables.
        model: the model; its variables live in the strategy's scope.
        state: the contents of checkpoints.
        accounts: the time spent on each activity.
        stop_reason: why training ended early, or is about to; `None` if it did
            not.
        restart_reason: why the run saves and exits, to be started again.
        save_requested: whether a checkpoint is wanted.
        logged: values given to `log` that no logger has taken yet.
        evaluating: the split that is being evaluated, from `on_test_begin` to
            `on_test_end`; otherwise `None`.
        steps: the step at which training ends; `None` where nothing trains.
        epochs: of this call.
        sets: the splits that it evaluates.
        saves: whether a callback saves checkpoints.
        keras_ends: whether a callback of Keras' kind acts in `on_train_end`.
        save_now: in `on_save`, whether a checkpoint was requested.
        written: local files or directories that loggers have written.
        saved_under: the fingerprint of the configuration under which the
            checkpoint was saved that it continues from.
        unfired_from: the step before the last graph call, if the events that
            are due after it have not been called yet.
        take_value: takes values that a callback logs, while there is a
            reporter.
        trains: identifies the variables that the traced steps train.
        is_resumed: whether it continues from a checkpoint on disk.
        tell: announces the start of slow work; does nothing by default.
        longer: the command to train longer, with `{}` for the steps.
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
        self.plugin, self.parts = built.plugin, built.parts
        self.state, self.accounts = built.state, built.accounts
        self.model: keras.Model = built.parts.model
        self.spec = spec
        self.batches = batches
        self.model_dir = model_dir
        self.stop_reason: str | None = None
        self.restart_reason: str | None = None
        self.save_requested = self.save_now = False
        self.logged = Logged()
        self.evaluating: str | None = None
        self.steps: int | None = None
        self.epochs = Epochs(None)
        self.sets: tuple[str, ...] = ()
        self.saves = self.keras_ends = False
        self.written: set[str] = set()
        self.saved_under: str | None = None
        self.unfired_from: int | None = None
        self.is_resumed = False
        self.tell: Callable[[str], None] = lambda doing: None
        self.longer = "train({})"
        self.take_value: Callable[[str, Value, str | None], None] | None = None
        # The ids of the variables that the traced steps train.
        self.trains = self._trainable()

    # What callbacks use.

    def synchronize(self) -> None:
        """Flushes to the disk what loggers have written; from any thread.

        Raises:
            OSError: the disk refuses.
        """
        while self.written:
            # Before: what is written meanwhile is flushed the next time.
            path = self.written.pop()
            try:
                files.synchronize_tree(path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # It was removed.
            except OSError:
                self.written.add(path)
                raise

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return self.state.step

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
        return self.stop_reason is not None or bool(self.model.stop_training)

    def stop(self, reason: str) -> None:
        """Ends training at the next boundary; from any thread."""
        self.stop_reason = reason

    def save_soon(self) -> None:
        """Saves a checkpoint at the next boundary; from any thread."""
        self.save_requested = True

    def start_again(self, reason: str) -> None:
        """Saves at the next boundary and raises `StartAgain`.

        All processes of the run do so at the same step. From any thread.

        Args:
            reason: such as `"SIGTERM"`.
        """
        self.restart_reason = reason

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
        per_epoch = self.epochs.steps
        period = parse_period(value, name=name, steps_per_epoch=per_epoch)
        return dataclasses.replace(period, begin=self.epochs.begin)

    def evaluation_period(self, split: str, every: PeriodLike | None) -> Period:
        """How often a split is evaluated; `None` is each epoch, or the end."""
        epochs = self.epochs
        if every is None:
            return Period(steps=epochs.steps or self.steps, begin=epochs.begin)
        name = "eval_every" if split == EVAL else f"eval_every[{split!r}]"
        period = self.period(every, name)
        # As in Keras: every n-th by their numbers, not from the first one on.
        earlier = epochs.first * (epochs.steps or 0)
        return dataclasses.replace(period, begin=period.begin - earlier)

    def describe(self) -> str:
        """Strategy, devices, parameters, batch, precision and compiled form."""
        plugin, spec = self.plugin, self.spec
        # Without the job and task, which are long and the same for all.
        devices = [d.rpartition("device:")[2].lower() for d in plugin.devices()]
        shown = ", ".join(devices[:4]) + (", ..." if len(devices) > 4 else "")
        micro = spec.accumulation_steps
        parts = [
            f"strategy {plugin.name} on {shown}",
            *self._describe_shares(),
            f"{self.model.count_params():,} parameters",
            f"batch {spec.batch_size}"
            + (f" in {micro} micro-batches" if micro > 1 else ""),
            self.model.dtype_policy.name,
            "run eagerly" if spec.run_eagerly else f"compiled as {spec.form}",
        ]
        return " | ".join(parts)

    def _describe_shares(self) -> list[str]:
        """Who shares a batch, and how many examples each one gets."""
        plugin, replicas = self.plugin, self.plugin.num_replicas
        jobs = plugin.describe().get("cluster", {}).get("jobs", {})
        # Beside parameter servers, the chief does not train.
        trains = ("worker",) if "ps" in jobs else ("worker", "chief")
        workers = sum(len(jobs.get(job, ())) for job in trains)
        counts = {"workers": workers, "replicas": replicas}
        named = [f"{n} {name}" for name, n in counts.items() if n > 1]
        each, rest = divmod(self.spec.batch_size, replicas)
        shown = f"{each} or {each + 1}" if rest else str(each)
        return [", ".join([*named, f"{shown} examples each"])] if named else []

    # What the loop and evaluations use.

    def why_restart(self) -> str | None:
        """Why this process wants to leave; `None` if it does not."""
        return self.restart_reason or self.plugin.why_start_again()

    def agree(self, *, shorter: bool = False) -> Requests:
        """One exchange among all processes of the run, at one step.

        Args:
            shorter: whether this process requests shorter graph calls.
        """
        # All flags in one exchange: each costs a collective among processes.
        own = Requests(
            stop=self.is_stopped,
            save=self.save_requested,
            restart=self.why_restart() is not None,
            shorter=shorter,
        )
        return Requests(*self.plugin.any_of(own))

    def use_form(self, form: Form) -> None:
        """Compiles the steps in another form from now on."""
        self.spec = dataclasses.replace(self.spec, form=form)

    @property
    def train_runner(self) -> GraphLoop:
        """The loop of training steps, traced once for all calls that are alike.

        A call of another form, batch size or class weights, or that trains
        other variables, has one of its own.
        """
        key = "train", self.spec.form, *self.traced_for
        return self.runner(key, self._make_train_runner)

    @property
    def traced_for(self) -> tuple[Hashable, ...]:
        """The conditions of a trace of training steps, besides their form."""
        weights = tuple(sorted((self.spec.class_weight or {}).items()))
        return self.spec.batch_size, weights, self.trains

    def _make_train_runner(self) -> GraphLoop:
        step = make_train_step(self.spec)
        if self.spec.run_eagerly:
            if self.saves:
                logging.warning(
                    "run_eagerly: state that no checkpoint holds is only found "
                    "in a graph, so it is not looked for."
                )
            return EagerLoop(step, self.plugin.strategy)
        if self.spec.form is Form.XLA_STACK:
            return self.plugin.stack_runner(step)
        return self.plugin.runner(step, training=True)

    def evaluator(self, batches: Batches) -> Evaluator:
        """Measures batches; data of one structure and size shares a trace."""
        key = str(batches.element_spec), batches.batch_size, self.trains
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
        self.trains = self._trainable()

    def check_alike(self) -> None:
        """Compares data and directory in all processes, before the first step.

        Each reads its own part of the same global batches. With other data on
        a host, the processes would wait for each other at the end of the
        shorter one, or train on examples that were not chosen.

        Raises:
            UserError: it differs; the message says which process differs in
                what.
        """
        if self.plugin.is_alone:
            return
        facts: dict[str, Any] = {}
        if self.model_dir is not None:
            # A directory of its own would lack the checkpoints at a restart.
            name = f"{self.model_dir} (all hosts must share it): its lock"
            facts[name] = holder(self.model_dir)
        for split in ("train", *self.sets):
            batches = self.batches(split)
            facts |= {
                f"the batches of {split}": batches.steps_per_epoch,
                f"the last batch of {split}": batches.last_size,
                f"the form of {split}": str(batches.element_spec),
                f"the first batch of {split}": _first_of(batches),
            }
        self.plugin.check_alike(facts)

    def check_still_trainable(self) -> None:
        """Checks that the steps train what they were traced for.

        Raises:
            UserError: a callback has changed what is trainable.
        """
        if self.trains != self._trainable():
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


def _first_of(batches: Batches) -> str | None:
    """The fingerprint of a first batch; `None` if each reading makes another.

    Of examples that a pipeline makes only the targets count: it may augment
    inputs by draws of its own on each host.
    """
    is_made = batches.arrays is None

    def read() -> str:
        batch = next(iter(batches.read(start=0)))
        if is_made:
            _, batch, _ = keras.utils.unpack_x_y_sample_weight(batch)
        leaves = tf.nest.flatten(batch, expand_composites=True)
        return fingerprints.arrays(map(np.asarray, leaves))

    first = read()
    return None if is_made and read() != first else first
