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
from trainer.strategy.graph_loop import GraphLoop
from trainer.tools.check.programs import RunPrograms

# Steps in one call that is timed, and batches of an evaluation.
_TIMED, _EVALUATED = 8, 10


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
    ]
    # A strategy that only compiles says what it compiles.
    if loop.form is not None and run.plugin.why_only_checked is None:
        form = str(run.spec.form)
        rows.append(Row("compiled form", form, note=loop.form.why))
    return Section("run", rows)


def _model(run: Run) -> Section:
    parts, model = run.parts, run.model
    optimizers = [v for one in parts.optimizers.values() for v in one.variables]
    average = parts.ema.variables if parts.ema else []
    trainable = sum(math.prod(v.shape) for v in model.trainable_variables)
    return Section(
        "model",
        [
            Row("parameters", model.count_params()),
            Row("trainable parameters", trainable),
            Row("model memory", _bytes(model.variables), "bytes"),
            Row("optimizer memory", _bytes(optimizers), "bytes"),
            Row("moving average memory", _bytes(average), "bytes"),
        ],
    )


def _steps(run: Run, loop: Loop) -> Section:
    """Makes steps; the first one is traced, and not timed."""
    before = run.step
    left = max(loop.steps - before, 0)
    faults: list[str] = []
    loop.try_steps(1, faults)
    rate = _TIMED / loop.try_steps(_TIMED, faults)
    values = loop.reporter.epoch_values()
    runner = run.train_runner
    retraces = runner.traces - 1 if isinstance(runner, GraphLoop) else None
    rows = [
        Row("steps made", run.step - before),
        *(Row(name, value) for name, value in values.items()),
        Row("retraces", retraces),
        Row("steps a second", rate, "steps/s", f"over {_TIMED} steps"),
        Row("all that are left", left / rate, "s", f"{left:,} steps, alone"),
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


def _bytes(variables: Sequence[Any]) -> int:
    """Returns the bytes that variables take on one device."""
    return sum(
        math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables
    )
