"""`build`: from the options of a run to a run that is built, in one mode."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import tensorflow as tf
from absl import logging

from trainer.checkpoint.init_from import initialize_from
from trainer.checkpoint.storage import load_newest
from trainer.errors import BadValue, UserError
from trainer.loop.evaluation_sets import sets_of, unprefixed
from trainer.loop.loop import Loop
from trainer.loop.run import Run
from trainer.run_options import TRAINING_MODES, Mode, RunOptions, taking
from trainer.runtime import fingerprints
from trainer.runtime.run_paths import RunIsOver, plain
from trainer.runtime.standard_streams import say_now
from trainer.sidecar_evaluator import follow
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.registry import find_strategy
from trainer.trainer import Trainer
from trainer.values.annotations import Text
from trainer.values.configurable import configurable
from trainer.values.keras_values import Callbacks
from trainer.values.words import shown


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
    """Returns the tool for a mode; `None` for modes of the core.

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
@taking(lambda facts: facts.in_gin)
@contextlib.contextmanager
def build(
    *,
    mode: Mode,
    model_dir: Text,
    **options: Any,
) -> Iterator["BuiltRun"]:
    """Builds a run: strategy, Trainer and host loop. In gin it is `run`.

    The evaluator of a cluster follows the checkpoints
    (`"continuous_eval"`) where the other tasks train. The chief evaluates
    too, unless its mode is `"train"`. Parameter servers and their workers
    serve here, and have done so when the run is over.

    In the context weights are restored and steps are traced: whatever the run
    can be refused for shows by then, and nothing has been written yet. Leaving
    it closes callbacks, and releases devices and peers.

    Yields:
        The run.

    Raises:
        UserError: the configuration is not valid, or cannot be honored.
    """
    asked = RunOptions(**options)
    asked.check(mode)
    model_dir = plain(model_dir)
    # Before all that takes long: it compares the record at the start with later
    # ones.
    is_over = RunIsOver(model_dir)
    # Before the strategy: TensorFlow fixes its devices with the first
    # operation.
    _configure_runtime(asked, mode)
    plugin = _find_plugin(asked, mode)
    # Closed after an error as well, so that peers learn why this process ends.
    with contextlib.closing(plugin), contextlib.ExitStack() as exits:
        # Parameter servers and their workers do nothing else.
        if plugin.serve():
            yield BuiltRun("serve", plugin, dict)
            return
        trainer = _make_trainer(asked.trainer or Trainer, plugin)
        # This process is the run's own: what its data draws follows the seed.
        keras.utils.set_random_seed(trainer.seed)
        if mode in TRAINING_MODES and plugin.is_evaluator:
            mode = "continuous_eval"
        folder, tool = model_dir, tool_of(mode)
        if tool is not None:
            # It must neither begin a run nor change one.
            given = tool.folder(model_dir, asked.callbacks)
            folder = exits.enter_context(given)
        say_now("building the model")
        call = trainer._new_run(folder)
        call.longer = "--train_steps={}"
        if mode == "continuous_eval":
            follows = functools.partial(follow, call, asked, is_over=is_over)
            yield BuiltRun(mode, plugin, follows, call)
            return
        evaluates = mode in ("train_and_eval", "check")
        loop = Loop(call, asked, evaluate=evaluates)
        does: dict[str, Callable[[], dict[str, float]]] = {
            "eval": functools.partial(_evaluate, trainer, asked),
            "export": functools.partial(_export, loop),
        }
        if tool is not None:
            does[mode] = functools.partial(tool.run, call, loop, folder)
        with _restored(mode, asked, call, loop, model_dir):
            run = does.get(mode, loop.train)
            yield BuiltRun(mode, plugin, run, call, tool)
        # None may leave while another still evaluates or exports.
        plugin.finish()


@contextlib.contextmanager
def _restored(
    mode: str, asked: RunOptions, call: Run, loop: Loop, model_dir: str
) -> Iterator[None]:
    """Gives a run the weights and the state that it begins with."""
    checkpoints = os.path.join(model_dir, "checkpoints")
    if mode in ("eval", "export"):
        if not call.state.restore_newest(checkpoints):
            raise UserError(
                f"{checkpoints} holds no usable checkpoint. Train first with "
                "the same --model_dir."
            )
        for callback in loop.callbacks.ours:
            callback.load_best_weights()
        yield
        return
    # Only a new run: a resumed one has these weights and more.
    if asked.init_from and load_newest(checkpoints) is None:
        initialize_from(call.parts, asked.init_from, only=asked.init_only)
        # One may have slots that begin at the weights.
        call.built.restart_optimizers()
    with loop.ready():
        yield


@dataclasses.dataclass(frozen=True)
class BuiltRun:
    """A run in one mode whose strategy, Trainer and host loop exist.

    Attributes:
        mode: the mode of this process: the one that was asked for, except
            `"continuous_eval"` in the evaluator of a cluster that trains, and
            `"serve"` in a task that has served others.
        plugin: the strategy plugin.
        run: does what the mode says; once, within the context. It returns the
            newest values; evaluation's as `val_*` where the mode trains.
        call: what the Trainer does; `None` in `"serve"`.
        tool: does what the mode says, if that is not the core's.
    """

    mode: str
    plugin: StrategyPlugin
    run: Callable[[], dict[str, float]]
    call: Run | None = None
    tool: Tool | None = None

    @property
    def trains(self) -> bool:
        """Whether this process trains."""
        return self.mode in TRAINING_MODES


def _evaluate(trainer: Trainer, asked: RunOptions) -> dict[str, float]:
    """Measures each set, or the only one of `run.eval_split`."""
    only, steps = asked.eval_split, asked.eval_steps
    sets = [only] if only else list(sets_of(asked.eval_every))
    found = {
        split: trainer.evaluate(split=split, steps=steps) for split in sets
    }
    return found[sets[0]] if len(sets) == 1 else unprefixed(found)


def _configure_runtime(asked: RunOptions, mode: str) -> None:
    if asked.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(asked.tf32)
    told = asked.devices is not None or "CUDA_VISIBLE_DEVICES" in os.environ
    gpus = tf.config.get_visible_devices("GPU")
    try:
        if mode == "continuous_eval" and gpus and not told:
            tf.config.set_visible_devices([], "GPU")
            logging.warning(
                "The evaluator leaves all GPUs to training. To give it some, "
                "set CUDA_VISIBLE_DEVICES."
            )
        if asked.memory_growth:
            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
        if asked.virtual_devices is None:
            return
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * asked.virtual_devices,
        )
    except RuntimeError:
        raise UserError(
            "virtual_devices, memory_growth or an evaluator comes too late: "
            "TensorFlow is already running in this process. Set it in a new "
            "process."
        ) from None


def _find_plugin(asked: RunOptions, mode: str) -> StrategyPlugin:
    plugin = find_strategy(
        asked.strategy,
        devices=asked.devices,
        tpu=asked.tpu,
        tpu_topology=asked.tpu_topology,
        worker_hosts=asked.worker_hosts,
        ps_hosts=asked.ps_hosts,
        task_type=asked.task_type,
        task_index=asked.task_index,
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
    return plugin


def _make_trainer(
    factory: Callable[..., Trainer], plugin: StrategyPlugin
) -> Trainer:
    made = factory(strategy=plugin)
    if not isinstance(made, Trainer):
        raise UserError(
            f"run.trainer made a {type(made).__name__}, not a Trainer. Name "
            "the Trainer or a subclass of it."
        )
    recipe = made._recipe
    model = recipe.given and recipe.given.model
    for name, one in (("model", model), ("optimizer", recipe.optimizer)):
        if not isinstance(one, keras.Model | keras.optimizers.Optimizer):
            continue
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
