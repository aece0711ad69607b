"""Tries and times the compiled forms of a step; nothing of a run changes."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from absl import logging

from trainer.data import Batches
from trainer.loop.form_trial import PYTHON, Contender, compiled
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.without_trace import why_not_set_back, without_trace
from trainer.runtime.exit_report import headline
from trainer.step.forms import Form
from trainer.step.lookups import TYPES
from trainer.strategy.graph_loop import GraphLoop

# How often each form is timed, how long a time is meant to take, and how many
# steps it has at most.
_ROUNDS, _ROUND_SECONDS, _MOST_STEPS = 5, 0.05, 100
# A run of which less is left does not get it back.
_WORTH_SECONDS = 10.0
# What may be spent: seconds, or a share of the expected run.
_BUDGET_SECONDS, _BUDGET_SHARE = 3.0, 0.02
# XLA compiles for about as many times as long as TensorFlow traces.
_COMPILE_PER_TRACE = 4.0
# What is only as fast as that is noise, and the plain graph is kept.
_GAIN = 1.05
# What a stack saves, in each step, of what it takes to call a compiled one: at
# most so many seconds, also where a few steps are timed on a busy machine.
_CALL_SECONDS = 4e-3
# XLA leaves checks out. Nobody must lose one without having asked for it; and
# what Python does in a step must not be done in a trial. Lookups are checked in
# another way, where `trainer.step.lookups` knows their bounds.
_CHECKS = PYTHON | {
    "Assert",
    "CheckNumerics",
    "CheckNumericsV2",
    "ResourceGather",
    "ResourceGatherNd",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What was measured.

    Attributes:
        best: the fastest form.
        steps_per_second: by form; without those that were not timed.
        why: a clause.
        is_complete: whether all forms were considered, so that the result
            holds for longer runs, too.
    """

    best: Form
    steps_per_second: dict[Form, float]
    why: str
    is_complete: bool


def time_forms(
    trainer: RunningTrainer,
    batches: Batches,
    forms: Sequence[Form],
    *,
    steps: int,
) -> Timing:
    """Times forms in turn, within a budget; nothing of the run changes.

    Args:
        trainer: built and prepared. It has the fastest form afterwards.
        batches: its training data.
        forms: what the strategy and the data allow, the graph among them.
        steps: how many are to be made.

    Returns:
        The times, and the fastest form. A form that cannot be compiled, or
        whose losses differ, is left out.
    """
    with trainer.accounts.phase("calibration"):
        begin = time.perf_counter()
        # Traced first: only then is it known what its steps change.
        graph = Contender(trainer, batches, Form.GRAPH)
        why = _why_not_tried(trainer, graph)
        if why is not None:
            return Timing(
                best=Form.GRAPH,
                steps_per_second={},
                why=why,
                is_complete=False,
            )
        try:
            with without_trace(trainer):
                timed, why, is_complete = _time_in_turn(
                    trainer, batches, graph, forms, steps=steps, begin=begin
                )
        except BaseException:
            trainer.use_form(Form.GRAPH)
            raise
    rates = {one.form: 1.0 / one.seconds for one in timed}
    best = max(timed, key=lambda one: rates[one.form])
    if rates[best.form] < _GAIN * rates[Form.GRAPH]:
        best = graph
    trainer.use_form(best.form, best.runner)
    return Timing(
        best=best.form,
        steps_per_second={
            form: float(f"{rate:.3g}") for form, rate in rates.items()
        },
        why=why,
        is_complete=is_complete,
    )


def _why_not_tried(trainer: RunningTrainer, graph: Contender) -> str | None:
    """Why no step may be made in a trial, or none compiled by XLA."""
    if (why := why_not_set_back(trainer)) is not None:
        return why
    if not isinstance(graph.runner, GraphLoop):
        return "its strategy has a loop of its own"
    operations = graph.runner.operations()
    found = sorted(_CHECKS.intersection(operations))
    lookups = TYPES.intersection(operations)
    count = sum(operations[one] for one in lookups)
    # Such as in a loop, or with an axis or a table that varies.
    if count > len(trainer.spec.lookups.found):
        found += sorted(lookups)
    if found:
        return f"XLA would leave out its checks ({', '.join(found)})"
    return None


def _time_in_turn(
    trainer: RunningTrainer,
    batches: Batches,
    graph: Contender,
    forms: Sequence[Form],
    *,
    steps: int,
    begin: float,
) -> tuple[list[Contender], str, bool]:
    """Times the graph, and what else there is time for.

    Returns:
        Those that were timed, why only those, and whether all had their turn.
    """
    # All forms begin with the same state.
    with trainer.state.unchanged():
        graph.compile()
        once = graph.time(1)
        count = int(np.clip(_ROUND_SECONDS / once, 1, _MOST_STEPS))
        expected = steps * graph.time(count)
    if expected < _WORTH_SECONDS:
        why = f"{expected:.0f} s of training are too short to try others"
        return [graph], why, False
    end = begin + max(_BUDGET_SECONDS, _BUDGET_SHARE * expected)
    timed, is_complete = [graph], True
    for form in (form for form in _by_promise(graph) if form in forms):
        if form is Form.XLA_STACK and _is_hopeless(timed):
            logging.info("No step is compiled as %s: XLA is slower here", form)
            continue
        # A compilation cannot be stopped.
        will_take = _COMPILE_PER_TRACE * graph.trace_seconds
        if time.perf_counter() + will_take > end:
            is_complete = False
            break
        made = compiled(trainer, batches, form)
        if isinstance(made, str):
            logging.info("No step is compiled as %s: %s", form, made)
        elif _agree(trainer, made, graph):
            # The next form has to begin with the same state, too.
            with trainer.state.unchanged():
                timed += [made] if _has_time(made, count) else []
    for number in range(_ROUNDS):
        if number > 0 and time.perf_counter() > end:
            break
        timed = [one for one in timed if _has_time(one, count)]
    return timed, "it is the fastest here", is_complete


def _by_promise(graph: Contender) -> tuple[Form, ...]:
    """Compiled forms, with that one first which promises most."""
    if graph.seconds < _CALL_SECONDS:
        return Form.XLA_STACK, Form.XLA
    # Calls are a small part of such a step. XLA shows what it makes of the rest
    # sooner without a stack.
    return Form.XLA, Form.XLA_STACK


def _is_hopeless(timed: Sequence[Contender]) -> bool:
    """Whether a stack would be slower than the graph, by a single step's time.

    XLA takes several times as long as TensorFlow for convolutions on a CPU.
    """
    seconds = {one.form: one.seconds for one in timed}
    if Form.XLA not in seconds:
        return False
    return seconds[Form.XLA] - _CALL_SECONDS > seconds[Form.GRAPH]


def _has_time(one: Contender, steps: int) -> bool:
    """Times steps of a form; whether they could be made."""
    try:
        one.time(steps)
    # Such as one that a short batch is compiled for.
    except Exception as error:
        if one.form is Form.GRAPH:
            raise
        logging.info("%s is left out: %s", one.form, headline(error))
        return False
    return True


def _agree(trainer: RunningTrainer, made: Contender, graph: Contender) -> bool:
    """Whether a form comes to the losses of the graph."""
    # XLA makes other floating-point numbers of the same random bits.
    if trainer.parts.randomness.was_drawn or made.agrees_with(graph):
        return True
    logging.warning(
        "Compiled as %s, the first steps have other losses than as a graph "
        "(%s, not %s), so the step is not compiled so.",
        made.form,
        made.loss,
        graph.loss,
    )
    return False
