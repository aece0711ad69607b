"""`run`: one configured experiment in one mode, for `python -m trainer`."""

import os
from collections.abc import Callable, Sequence

import gin
import keras
import tensorflow as tf

from trainer.checkpoint.init_from import initialize_from
from trainer.checkpoint.stateful import usable
from trainer.errors import UserError, nearest
from trainer.loop.loop import Loop
from trainer.runtime import fingerprints
from trainer.runtime.local_files import plain
from trainer.sidecar_evaluator import follow
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.registry import find_strategy
from trainer.trainer import Trainer

MODES = (
    "train",
    "eval",
    "train_and_eval",
    "continuous_eval",
    "export",
    "check",
)


@gin.configurable(module="trainer", denylist=["mode", "model_dir"])
def run(
    *,
    mode: str,
    model_dir: str,
    trainer: Callable[..., Trainer] = Trainer,
    strategy: str = "auto",
    train_steps: int = 1000,
    eval_every: int | str | None = None,
    eval_steps: int | None = None,
    eval_timeout: str = "1h",
    eval_poll_seconds: float = 10.0,
    best_monitor: str = "val_loss",
    best_mode: str = "auto",
    log_every: int | str = 100,
    steps_per_loop: int = 100,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    init_from: str | None = None,
    init_only: str | None = None,
    devices: str | Sequence[str] | None = None,
    tpu: str | None = None,
    worker_hosts: str | Sequence[str] | None = None,
    ps_hosts: str | Sequence[str] | None = None,
    task_type: str | None = None,
    task_index: int | None = None,
    virtual_devices: int | None = None,
    deterministic: bool = False,
    before_first_step: Callable[[Trainer], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Runs an experiment; in gin its parameters are `run.*`.

    The evaluator of a cluster follows the checkpoints
    (`"continuous_eval"`) where the other tasks train. The chief evaluates
    too, unless its mode is `"train"`.

    Args:
        mode: one of `MODES`.
        model_dir: where the run lives.
        trainer: the Trainer class.
        strategy: a strategy plugin's name, or `"auto"`.
        train_steps: the step at which training ends.
        eval_every: see `trainer.loop.Loop`.
        eval_steps: see `trainer.loop.Loop`.
        eval_timeout: see `trainer.sidecar_evaluator.follow`.
        eval_poll_seconds: see `trainer.sidecar_evaluator.follow`.
        best_monitor: see `trainer.sidecar_evaluator.follow`, which keeps
            the best.
        best_mode: see `trainer.sidecar_evaluator.follow`.
        log_every: see `trainer.loop.Loop`.
        steps_per_loop: see `trainer.loop.Loop`.
        callbacks: the callbacks of a training run.
        init_from: the run or file whose weights a new run starts with; see
            `trainer.checkpoint.init_from.initialize_from`.
        init_only: which of the model's variables are loaded, as a regular
            expression for their paths, such as `"encoder/.*"`.
        devices: passed to the strategy plugin.
        tpu: passed to the strategy plugin.
        worker_hosts: passed to the strategy plugin.
        ps_hosts: passed to the strategy plugin.
        task_type: passed to the strategy plugin.
        task_index: passed to the strategy plugin.
        virtual_devices: how many logical devices the CPU is split into.
        deterministic: make every TensorFlow op reproducible bit by bit.
        before_first_step: called with the trainer when everything is built
            and restored, in the modes that train, and in `check`.
        is_over: in `continuous_eval`, whether the run has ended well.

    Returns:
        The newest values; evaluation's as `val_*` where the mode trains.

    Raises:
        UserError: the configuration is not valid, or cannot be honoured.
    """
    # Long because its parameters are what a gin file may set: they are listed,
    # checked and passed on here, and nowhere else.
    if mode not in MODES:
        raise UserError(f"Unknown mode {mode!r}. {nearest(mode, MODES)}")
    model_dir = plain(model_dir)
    if init_only is not None and init_from is None:
        raise UserError(
            f"run.init_only = {init_only!r} needs a run to load from: set "
            "--init_from."
        )
    # Before the strategy: TensorFlow fixes its devices with the first
    # operation.
    _configure_runtime(virtual_devices, deterministic)
    plugin = find_strategy(
        strategy,
        devices=devices,
        tpu=tpu,
        worker_hosts=worker_hosts,
        ps_hosts=ps_hosts,
        task_type=task_type,
        task_index=task_index,
    )
    # Before `create`, which may compare them with those of the other processes.
    plugin.facts = {
        "configuration": fingerprints.configuration(),
        "code": fingerprints.code(),
    }
    try:
        # Parameter servers and their workers do nothing else.
        if plugin.serve():
            return {}
        made = _make_trainer(trainer, plugin)
        trains = mode in ("train", "train_and_eval")
        if mode == "continuous_eval" or (trains and plugin.is_evaluator):
            return follow(
                made,
                model_dir=model_dir,
                train_steps=train_steps,
                eval_steps=eval_steps,
                callbacks=callbacks,
                timeout=eval_timeout,
                poll_seconds=eval_poll_seconds,
                monitor=best_monitor,
                monitor_mode=best_mode,
                is_over=is_over,
            )
        loop = Loop(
            made,
            steps=train_steps,
            # A check builds the evaluation's graph, too.
            evaluate=mode in ("train_and_eval", "check"),
            model_dir=model_dir,
            callbacks=callbacks,
            steps_per_loop=steps_per_loop,
            log_every=log_every,
            eval_every=eval_every,
            eval_steps=eval_steps,
        )
        directory = os.path.join(model_dir, "checkpoints")
        if mode in ("eval", "export"):
            _restore(made, directory)
            values = (
                made.evaluate(eval_steps) if mode == "eval" else _export(loop)
            )
            # None may leave while another still evaluates or exports.
            plugin.finish()
            return values
        # Only a new run: a resumed one has these weights and more.
        report = None
        if init_from is not None and not _goes_on(directory):
            report = initialize_from(made, init_from, only=init_only)
        # After loading weights, so that a check finds out whether they fit.
        if mode == "check":
            return _check(made, loop, before_first_step)

        # Only now, when nothing can be refused any more, is anything written:
        # a run that is refused leaves no directory behind.
        def when_ready() -> None:
            if before_first_step is not None:
                before_first_step(made)
            if report is not None and plugin.is_chief:
                report.write(model_dir)

        values = loop.run(when_ready)
        plugin.finish()
        return values
    finally:
        # After an error as well, so that peers learn why this process ends.
        plugin.close()


def _configure_runtime(
    virtual_devices: int | None, deterministic: bool
) -> None:
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    if virtual_devices is None:
        return
    if virtual_devices < 1:
        raise UserError(
            f"virtual_devices = {virtual_devices} must be at least 1."
        )
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
    return made


def _goes_on(directory: str) -> bool:
    """Whether there is a checkpoint from which a run can go on."""
    return next(usable(directory), None) is not None


def _restore(trainer: Trainer, directory: str) -> None:
    if not trainer.state.restore_newest(directory):
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


def _check(
    trainer: Trainer,
    loop: Loop,
    before_first_step: Callable[[Trainer], None] | None,
) -> dict[str, float]:
    """Traces every graph of a run without running or writing anything."""
    loop.trace()
    if before_first_step is not None:
        before_first_step(trainer)
    return {
        "parameters": float(trainer.model.count_params()),
        "train_steps": float(loop.steps),
    }
