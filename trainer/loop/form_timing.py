"""Tries and times the compiled forms of a step; nothing of a run changes."""

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from trainer.data import Batches
from trainer.data.stacks import is_like_pieces
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.training_input import training_input
from trainer.loop.without_trace import why_not_set_back, without_trace
from trainer.runtime.exit_report import headline
from trainer.step.forms import Form
from trainer.step.logs import LOSS_PART
from trainer.step.lookups import TYPES
from trainer.step.reductions.sums import Sums
from trainer.strategy.graph_loop import GraphLoop

# How often each form is timed, how long a time is meant to take, and how many
# steps it has at most.
_ROUNDS, _ROUND_SECONDS, _MOST_STEPS = 5, 0.05, 100
# Steps after which the losses of two forms are compared.
_COMPARED = 2
# A run of which less is left does not get it back.
_WORTH_SECONDS = 10.0
# What may be spent: seconds, or a share of the expected run.
_BUDGET_SECONDS, _BUDGET_SHARE = 3.0, 0.02
# XLA compiles for about as many times as long as TensorFlow traces.
_COMPILE_PER_TRACE = 4.0
# What is only as fast as that is noise, and the plain graph is kept.
_GAIN = 1.05
# Losses that differ by less than this share differ by rounding.
_TOLERANCE = 1e-2
# What promises most comes first.
_BY_PROMISE = (Form.XLA_STACK, Form.XLA)
# XLA leaves checks out. Nobody must lose one without having asked for it; and
# what Python does in a step must not be done in a trial. Lookups are checked in
# another way, where `trainer.step.lookups` knows their bounds.
_PYTHON = {"EagerPyFunc", "Print", "PrintV2", "PyFunc", "PyFuncStateless"}
_CHECKS = _PYTHON | {
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


class Contender:
    """One form: its runner, its input, and its times.

    Attributes:
        form: of the step.
        runner: traced; compiled by the first run.
        trace_seconds: how long TensorFlow took.
        loss: the sums of what the first steps have logged as losses.
        seconds: the fewest that a step took, of those that were timed.
    """

    def __init__(
        self, trainer: RunningTrainer, batches: Batches, form: Form
    ) -> None:
        trainer.use_form(form)
        self.form = form
        self.runner = trainer.train_runner
        # From the beginning: other steps may take long to reach.
        self.input = training_input(trainer, batches, start=0)
        begin = time.perf_counter()
        self.runner.trace(self.input)
        self.trace_seconds = time.perf_counter() - begin
        self.loss: list[np.ndarray] = []
        self.seconds = math.inf

    def compile(self) -> None:
        """Makes the first steps."""
        _, sums = self._run(_COMPARED)
        self.loss = [
            np.asarray(value)
            for name, value in sums.total().items()
            if name == "loss" or name.startswith(LOSS_PART)
        ]

    def time(self, steps: int) -> float:
        """Returns the seconds of a step."""
        seconds, _ = self._run(steps)
        # The fastest counts: what else the machine did has slowed the others.
        self.seconds = min(self.seconds, seconds)
        return seconds

    def agrees_with(self, other: "Contender") -> bool:
        """Whether the first steps have had the same loss."""
        pairs = zip(self.loss, other.loss, strict=True)
        return all(
            np.allclose(a, b, rtol=_TOLERANCE, equal_nan=True) for a, b in pairs
        )

    def _run(self, steps: int) -> tuple[float, Sums]:
        begin = time.perf_counter()
        (sums,) = self.runner(self.input, steps)
        _ = sums.rows  # Reading them waits for the device.
        return (time.perf_counter() - begin) / steps, sums


def python_in(operations: Iterable[str]) -> list[str]:
    """Those types of operations that act outside of the graph, sorted."""
    return sorted(_PYTHON.intersection(operations))


def why_unusable(
    trainer: RunningTrainer, batches: Batches, form: Form
) -> str | None:
    """Compiles a form, and makes two steps that leave no trace.

    Returns:
        Why it cannot be had; `None` if it can. The trainer has it then.
    """
    with trainer.accounts.phase("compile"):
        made = _compiled(trainer, batches, form)
    return made if isinstance(made, str) else None


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
    for form in (form for form in _BY_PROMISE if form in forms):
        # A compilation cannot be stopped.
        will_take = _COMPILE_PER_TRACE * graph.trace_seconds
        if time.perf_counter() + will_take > end:
            is_complete = False
            break
        made = _compiled(trainer, batches, form)
        if isinstance(made, str):
            logging.info("No step is compiled as %s: %s", form, made)
        elif _agree(trainer, made, graph):
            timed.append(made)
    for number in range(_ROUNDS):
        if number > 0 and time.perf_counter() > end:
            break
        for one in [*timed]:
            try:
                one.time(count)
            # Such as one that a short batch is compiled for.
            except Exception as error:
                if one is graph:
                    raise
                logging.info("%s is left out: %s", one.form, headline(error))
                timed.remove(one)
    return timed, "it is the fastest here", is_complete


def _compiled(
    trainer: RunningTrainer, batches: Batches, form: Form
) -> Contender | str:
    """Compiles a form by steps that leave no trace; or says why it cannot."""
    try:
        made = Contender(trainer, batches, form)
        if form is Form.XLA_STACK and not is_like_pieces(batches):
            return "the data gives other batches in a stack than one by one"
        # What cannot be set back must not be changed.
        if not trainer.parts.untracked.lost:
            with without_trace(trainer):
                made.compile()
    # XLA, TensorFlow, Keras and research code raise whatever they like: all of
    # it means that this form cannot be had.
    except Exception as error:
        return f"XLA cannot compile the step: {headline(error)}"
    return made


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
