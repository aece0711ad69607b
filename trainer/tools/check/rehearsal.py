"""Makes first steps of a run, an evaluation, a save, a restore, an export."""

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.checkpoint import storage
from trainer.errors import UserError
from trainer.loop.evaluation_sets import EVAL
from trainer.loop.loop import Loop
from trainer.loop.run import Run
from trainer.runtime.report import Row, Section
from trainer.step.keras.private import all_layers
from trainer.strategy.graph_loop import GraphLoop
from trainer.tools.check.programs import RunPrograms

# Steps in one call, and the seconds that one has to take to be timed by.
_MOST_STEPS, _SECONDS = 64, 0.5
_EVALUATED = 10


def rehearse(run: Run, loop: Loop, *, folder: str) -> list[Section]:
    """Tries a run that is `ready`, and says what was found.

    Args:
        run: has the weights that the run would start with.
        loop: of the run, in a directory that is not the run's own.
        folder: where to save.

    Raises:
        UserError: the run would not start.
        Diverged: its guard would end it in these steps.
    """
    plugin, why_not = run.plugin, run.plugin.why_only_checked
    sections = [_run(run, loop), _model(run)]
    if why_not is None:
        sections.append(_steps(run, loop))
        sections += [_evaluation(run, loop, split) for split in run.sets]
    else:
        sections.append(Section("steps", notes=(f"None was made: {why_not}.",)))
    if plugin.is_chief:
        sections.append(_checkpoint(run, os.path.join(folder, "saved")))
    if why_not is None:
        sections += _exports(loop)
    return [*sections, *plugin.check(RunPrograms(run))]


def _run(run: Run, loop: Loop) -> Section:
    rows = [
        Row("strategy", run.plugin.name),
        Row("replicas", run.plugin.num_replicas),
        Row("batch_size", run.spec.batch_size, note="over all replicas"),
        Row("micro-batches", run.spec.accumulation_steps),
        Row("begins at step", run.step),
        Row("ends at step", loop.steps),
        Row("steps per epoch", run.epochs.steps),
        *_form(run, loop),
    ]
    return Section("run", rows)


def _form(run: Run, loop: Loop) -> list[Row]:
    # A strategy that only compiles says what it compiles.
    if loop.form is None or run.plugin.why_only_checked is not None:
        return []
    form = str(run.spec.form)
    return [Row("compiled form", form, note=loop.form.why)]


def _model(run: Run) -> Section:
    model = run.model
    return Section(
        "model",
        [
            Row("layers", len(list(all_layers(model)))),
            Row("parameters", model.count_params()),
            Row("trainable parameters", _count(model.trainable_variables)),
            Row(
                "non-trainable parameters",
                _count(model.non_trainable_variables),
            ),
            *(
                Row(f"{name} memory", size, "bytes")
                for name, size in _memory_of(run).items()
            ),
        ],
    )


def _steps(run: Run, loop: Loop) -> Section:
    """Makes steps, until they take long enough to be timed."""
    before, count = run.step, 1
    left = max(loop.steps - before, 0)
    faults: list[str] = []
    first, seconds = loop.try_steps(1, faults), loop.try_steps(1, faults)
    # All processes of a run make as many, whatever their clocks say.
    while count < _MOST_STEPS and not run.plugin.any_process(
        seconds > _SECONDS
    ):
        count *= 2
        seconds = loop.try_steps(count, faults)
    rate = count / seconds
    values = loop.reporter.epoch_values()
    runner = run.train_runner
    retraces = runner.traces - 1 if isinstance(runner, GraphLoop) else None
    rows = [
        Row("steps made", run.step - before),
        *(Row(name, value) for name, value in values.items()),
        Row("first step", first, "s", "after tracing"),
        Row("retraces", retraces),
        Row("steps a second", rate, "steps/s", f"over {count} steps"),
        Row("all that are left", left / rate, "s", f"{left:,} steps, alone"),
        Row("examples a second", rate * run.spec.batch_size, "examples/s"),
    ]
    return Section("steps", rows, notes=faults)


def _evaluation(run: Run, loop: Loop, split: str) -> Section:
    """Evaluates a part of a split, and says how long all of it takes."""
    evaluate = run.evaluator(run.batches(split))
    length = loop.reporter.eval_steps or run.batches(split).steps_per_epoch
    count = min(length or _EVALUATED, _EVALUATED)
    evaluate(1)  # Traces.
    begin = time.perf_counter()
    values = evaluate(count)
    each = (time.perf_counter() - begin) / count
    rows = [
        Row("batches", count, note=f"of the {split} split"),
        *(Row(name, value) for name, value in values.items()),
        Row("an evaluation", each * length if length else None, "s"),
    ]
    title = "evaluation" if split == EVAL else f"evaluation of {split}"
    return Section(title, rows)


def _checkpoint(run: Run, folder: str) -> Section:
    """Saves, restores, and compares.

    Raises:
        UserError: what was saved is not what is restored.
    """
    before = run.state.digests()
    begin = time.perf_counter()
    storage.save(folder, run.state.capture())
    saved = time.perf_counter()
    if not run.state.restore_newest(folder):
        raise UserError("A checkpoint was saved that cannot be restored.")
    restored = time.perf_counter()
    if run.state.digests() != before:
        raise UserError("A checkpoint does not restore what was saved.")
    size = sum(
        os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    )
    rows = [
        Row("size", size, "bytes"),
        Row("saving", saved - begin, "s", "to a local disk"),
        Row("restoring", restored - saved, "s"),
        Row("restores what was saved", True),
    ]
    return Section("checkpoint", rows)


def _exports(loop: Loop) -> list[Section]:
    """Exports, in all processes, as a run does at its end."""
    exporters = [c for c in loop.callbacks.ours if hasattr(c, "export")]
    rows = []
    for exporter in exporters:
        begin = time.perf_counter()
        exporter.export()
        seconds = time.perf_counter() - begin
        rows.append(Row(f"export by {type(exporter).__name__}", seconds, "s"))
    return [Section("export", rows)] if rows else []


def _memory_of(run: Run) -> dict[str, int]:
    """The bytes of a run's variables on one device, by what they are for."""
    parts = run.parts
    optimizers = [v for one in parts.optimizers.values() for v in one.variables]
    groups: dict[str, Sequence[Any]] = {
        "model": parts.model.variables,
        "gradients": parts.model.trainable_variables,
        "optimizer": optimizers,
        "moving average": parts.ema.variables if parts.ema else [],
    }
    return {
        name: sum(
            math.prod(one.shape) * tf.as_dtype(one.dtype).size
            for one in variables
        )
        for name, variables in groups.items()
    }


def _count(variables: Sequence[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)
