"""`build`: from a configuration to a built run, in one mode."""

import contextlib
import importlib.metadata
import os
from collections.abc import Callable
from typing import Annotated, Any, Protocol, Self, TypeAlias

import tensorflow as tf
from annotated_types import Ge, Le, Predicate
from typing_extensions import Doc

from trainer.checkpoint.init_from import initialize_from
from trainer.checkpoint.stateful import usable
from trainer.errors import BadValue, UserError
from trainer.loop.evaluation_sets import EvalEvery, sets_of, unprefixed
from trainer.loop.loop import Loop
from trainer.loop.profiler import Steps as ProfiledSteps
from trainer.loop.run import Run
from trainer.loop.schedule import (
    Length,
    PeriodLike,
    Time,
    in_epochs,
    parse_length,
)
from trainer.runtime import fingerprints
from trainer.runtime.run_paths import plain
from trainer.runtime.run_status import RunIsOver
from trainer.sidecar_evaluator import follow
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.registry import find_strategy
from trainer.trainer import Trainer
from trainer.values.annotations import (
    Direction,
    Job,
    Names,
    Natural,
    Positive,
    Seconds,
    Text,
)
from trainer.values.configurable import configurable
from trainer.values.keras_values import Callbacks, makes
from trainer.values.words import shown

_TRAINING = ("train", "train_and_eval")
MODES = (
    *_TRAINING,
    *("eval", "continuous_eval", "export", "check"),
)
MakeTrainer: TypeAlias = Annotated[
    Callable[..., Any], makes(Trainer), Doc("Trainer, or a subclass of it")
]


class Tool(Protocol):
    """A mode that is not the core's: an entry point of `trainer.modes`."""

    def folder(
        self, model_dir: str, callbacks: Callbacks
    ) -> contextlib.AbstractContextManager[str]:
        """Gives a folder that stands for the run directory."""

    def run(self, run: Run, loop: Loop, folder: str) -> dict[str, float]:
        """Does what the mode says with a run that is `ready`."""

    def report(self, unused: list[str], model_dir: str | None) -> None:
        """Reports on the command line; `unused` are bindings."""

    def failed(self, why: str, model_dir: str | None) -> None:
        """Records that the run would not start."""


def tool_of(mode: str) -> Tool | None:
    """What does a mode; `None` for those of the core.

    Raises:
        UserError: it is not installed.
    """
    if mode != "check":
        return None
    found = importlib.metadata.entry_points(group="trainer.modes", name=mode)
    for entry in found:
        tool: Tool = entry.load()()
        return tool
    raise UserError(f"--mode={mode}: no installed package has this mode.")


def run(**arguments: Any) -> dict[str, float]:
    """Builds a run and runs it: `build`, whose arguments it takes."""
    with build(**arguments) as built:
        return built.run()


# In gin it is `run`: what a gin file sets there describes a run.
@configurable("run", module="trainer", denylist=["mode", "model_dir"])
def build(
    *,
    mode: Annotated[str, Predicate(MODES.__contains__), Doc(f"one of {MODES}")],
    model_dir: Text,
    trainer: MakeTrainer = Trainer,
    strategy: Text = "auto",
    train_steps: Length = 1000,
    max_time: Time | None = None,
    eval_every: EvalEvery | None = None,
    eval_split: Text | None = None,
    eval_steps: Positive | None = None,
    eval_timeout: Time = "1h",
    eval_poll_seconds: Seconds = 10.0,
    best_monitor: Text = "val_loss",
    best_mode: Direction = "auto",
    log_every: PeriodLike = 100,
    steps_per_loop: Positive = 100,
    callbacks: Callbacks = (),
    init_from: Text | None = None,
    init_only: Text | None = None,
    devices: Names | None = None,
    tpu: Text | None = None,
    tpu_topology: Text | None = None,
    fit_batch: bool = False,
    worker_hosts: Names | None = None,
    ps_hosts: Names | None = None,
    task_type: Job | None = None,
    task_index: Natural | None = None,
    virtual_devices: Annotated[int, Ge(1), Le(128)] | None = None,
    deterministic: bool = False,
    profile: ProfiledSteps | None = None,
) -> "BuiltRun":
    """Builds a run: strategy, Trainer and host loop. In gin it is `run`.

    The evaluator of a cluster follows the checkpoints
    (`"continuous_eval"`) where the other tasks train. The chief evaluates
    too, unless its mode is `"train"`. Parameter servers and their workers
    serve here, and return when the run is over.

    docs/parameters.md says what each argument means. `devices` to
    `task_index` are passed to the strategy plugin, those of the loop to
    `trainer.loop.Loop`, and `eval_*` and `best_*` of an evaluator to
    `trainer.sidecar_evaluator.follow`.

    Returns:
        The run, which has to be entered as a context before it is run.

    Raises:
        UserError: the configuration is not valid, or cannot be honored.
    """
    # Long because its parameters are what a gin file may set: they are listed,
    # checked and passed on here, and nowhere else.
    model_dir = plain(model_dir)
    if init_only is not None and init_from is None:
        raise UserError(
            f"run.init_only = {init_only!r} needs a run to load from: set "
            "--init_from."
        )
    _check_profile(mode, profile)
    # Before all that takes long: it compares the record at the start with later
    # ones.
    is_over = RunIsOver(model_dir)
    # Before the strategy: TensorFlow fixes its devices with the first
    # operation.
    _configure_runtime(virtual_devices, deterministic)
    plugin = find_strategy(
        strategy,
        devices=devices,
        tpu=tpu,
        tpu_topology=tpu_topology,
        fit_batch=fit_batch or None,
        worker_hosts=worker_hosts,
        ps_hosts=ps_hosts,
        task_type=task_type,
        task_index=task_index,
    )
    if plugin.why_only_checked is not None and mode != "check":
        raise UserError(
            f"{plugin.why_only_checked}, and mode = {mode!r} needs it. Set "
            "--mode=check."
        )
    # Before `create`, which may compare them with those of the other processes.
    plugin.facts = {
        "configuration": fingerprints.configuration(),
        "code": fingerprints.code(),
    }
    folder, scratch = None, contextlib.ExitStack()
    try:
        # Parameter servers and their workers do nothing else.
        if plugin.serve():
            return BuiltRun("serve", plugin)
        made = _make_trainer(trainer, plugin)
        if mode in _TRAINING and plugin.is_evaluator:
            mode = "continuous_eval"
        if mode == "continuous_eval":
            return BuiltRun(
                mode,
                plugin,
                made,
                made.new_run(model_dir),
                train_steps=_last_step(train_steps, made),
                eval_every=eval_every,
                eval_steps=eval_steps,
                callbacks=callbacks,
                timeout=eval_timeout,
                poll_seconds=eval_poll_seconds,
                monitor=best_monitor,
                monitor_mode=best_mode,
                is_over=is_over,
            )
        tool = tool_of(mode)
        if tool is not None:
            # It must neither begin a run nor change one.
            folder = scratch.enter_context(tool.folder(model_dir, callbacks))
        run = made.new_run(folder or model_dir)
        loop = Loop(
            run,
            steps=train_steps,
            evaluate=mode in ("train_and_eval", "check"),
            callbacks=callbacks,
            steps_per_loop=steps_per_loop,
            log_every=log_every,
            eval_every=eval_every,
            eval_steps=eval_steps,
            max_time=max_time,
            profile=profile,
        )
        return BuiltRun(
            mode,
            plugin,
            made,
            run,
            loop,
            model_dir=model_dir,
            # Only in the mode "eval".
            sets=[eval_split] if eval_split else list(sets_of(eval_every)),
            eval_steps=eval_steps,
            init_from=init_from,
            init_only=init_only,
            tool=tool,
            folder=folder,
            scratch=scratch,
        )
    except BaseException as error:
        scratch.__exit__(type(error), error, error.__traceback__)
        # So that peers learn why this process ends.
        plugin.close()
        raise


class BuiltRun:
    """A run in one mode whose strategy, Trainer and host loop exist.

    Entering it as a context restores weights and traces steps: whatever it
    can be refused for shows by then, and nothing has been written yet.
    Leaving it closes callbacks, and releases devices and peers.

    Attributes:
        mode: what this process does: what was asked for, but
            `"continuous_eval"` in the evaluator of a cluster that trains, and
            `"serve"` in a task that serves others, and has done so.
        trains: whether this process trains.
        plugin: the strategy plugin.
        trainer: `None` in `"serve"`.
        call: what the Trainer does; `None` in `"serve"`.
        loop: the host loop; `None` in `"serve"` and `"continuous_eval"`.
        tool: does what the mode says, if that is not the core's.
    """

    def __init__(
        self,
        mode: str,
        plugin: StrategyPlugin,
        trainer: Trainer | None = None,
        run: Run | None = None,
        loop: Loop | None = None,
        **options: Any,
    ) -> None:
        self.mode = mode
        self.trains = mode in _TRAINING
        self.plugin = plugin
        self.trainer = trainer
        self.call = run
        self.loop = loop
        self._options = options
        self.tool: Tool | None = options.pop("tool", None)
        self._loop_exit = contextlib.ExitStack()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            # After an error as well, so that peers learn why this process ends.
            stack.callback(self.plugin.close)
            if "scratch" in self._options:
                stack.enter_context(self._options["scratch"])
            stack.enter_context(self._loop_exit)
            if self.call is not None and self.loop is not None:
                self._prepare(self.call, self.loop)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.__exit__(*error)

    def _prepare(self, run: Run, loop: Loop) -> None:
        checkpoints = os.path.join(self._options["model_dir"], "checkpoints")
        if self.mode in ("eval", "export"):
            _restore(run, checkpoints)
            for callback in loop.callbacks.ours:
                callback.load_best_weights()
            return
        source = self._options["init_from"]
        # Only a new run: a resumed one has these weights and more.
        if source is not None and next(usable(checkpoints), None) is None:
            initialize_from(run.parts, source, only=self._options["init_only"])
            # One may have slots that begin at the weights.
            run.built.restart_optimizers()
        self._loop_exit.enter_context(loop.ready())

    def run(self) -> dict[str, float]:
        """Does what the mode says; once, within the context.

        Returns:
            The newest values; evaluation's as `val_*` where the mode trains.
        """
        trainer, run, loop = self.trainer, self.call, self.loop
        if trainer is None or run is None:
            return {}
        if loop is None:
            return follow(run, **self._options)
        if self.mode == "eval":
            values = self._evaluate(trainer)
        elif self.mode == "export":
            values = _export(loop)
        elif self.tool is not None:
            values = self.tool.run(run, loop, self._options["folder"])
        else:
            values = loop.train()
            self._loop_exit.close()
        # None may leave while another still evaluates or exports.
        self.plugin.finish()
        return values

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Measures each set, or the only one of `run.eval_split`."""
        sets, steps = self._options["sets"], self._options["eval_steps"]
        found = {
            split: trainer.evaluate(split=split, steps=steps) for split in sets
        }
        return found[sets[0]] if len(sets) == 1 else unprefixed(found)


def _check_profile(mode: str, steps: str | None) -> None:
    """Checks that steps are made that can be profiled.

    Raises:
        UserError: there are none.
    """
    if steps is not None and mode not in _TRAINING:
        raise UserError(
            f"profile = {steps!r} is for a run that trains, but mode = "
            f"{mode!r}. Valid with it: {', '.join(_TRAINING)}."
        )


def _configure_runtime(
    virtual_devices: int | None, deterministic: bool
) -> None:
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    if virtual_devices is None:
        return
    try:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * virtual_devices,
        )
    except RuntimeError:
        raise UserError(
            f"virtual_devices = {virtual_devices} comes too late: TensorFlow "
            "is already running in this process. Set it in a new process."
        ) from None


def _make_trainer(
    factory: Callable[..., Trainer], plugin: StrategyPlugin
) -> Trainer:
    made = factory(strategy=plugin)
    if not isinstance(made, Trainer):
        raise UserError(
            f"run.trainer made a {type(made).__name__}, not a Trainer. Name "
            "the Trainer or a subclass of it."
        )
    for name, one in made.given_objects().items():
        # In Python it does; gin would make it before the strategy and the
        # seed, and in a cluster TensorFlow would then refuse to start.
        kind = type(one).__name__
        raise BadValue(
            owner="Trainer",
            parameter=name,
            value=shown(one),
            wanted=(
                f"must be a function that makes it. In gin, write @{kind}, "
                "without parentheses."
            ),
        )
    return made


def _last_step(train_steps: int | str, trainer: Trainer) -> int:
    """The step at which the run that is followed ends."""
    per_epoch = None
    if in_epochs(train_steps):
        per_epoch = trainer.batches("train").steps_per_epoch
    return parse_length(
        train_steps, name="run.train_steps", steps_per_epoch=per_epoch
    )


def _restore(run: Run, directory: str) -> None:
    if not run.state.restore_newest(directory):
        raise UserError(
            f"{directory} holds no usable checkpoint. Train first with the "
            "same --model_dir."
        )


def _export(loop: Loop) -> dict[str, float]:
    # By what they can do: a user's own exporter counts, too.
    exporters = [c for c in loop.callbacks.ours if hasattr(c, "export")]
    if not exporters:
        raise UserError(
            "No callback of run.callbacks exports. Add @Export() to them."
        )
    for exporter in exporters:
        exporter.export()
    return {}
