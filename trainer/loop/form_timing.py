"""Times the compiled forms of a step, on a scratch copy of the run's state."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging

from trainer.data import Batches
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.training_input import training_input
from trainer.step.forms import Form
from trainer.step.logs import LOSS_PART
from trainer.step.reductions.sums import Sums

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


class _Contender:
    """One form, ready to run: its runner, its input, and its times.

    Attributes:
        form: of the step.
        runner: compiled by the first run.
        trace_seconds: how long TensorFlow took.
        loss: the sums of what the first steps have logged as losses.
        seconds: how long a step took, by round.
    """

    def __init__(
        self, trainer: RunningTrainer, batches: Batches, form: Form
    ) -> None:
        trainer.use_form(form)
        self.form = form
        self.runner = trainer.train_runner
        self._input = training_input(trainer, batches)
        begin = time.perf_counter()
        self.runner.trace(self._input)
        self.trace_seconds = time.perf_counter() - begin
        # All forms begin with the same state and the same batches.
        with trainer.state.unchanged():
            _, sums = self._run(_COMPARED)
        self.loss = [
            np.asarray(value)
            for name, value in sums.total().items()
            if name == "loss" or name.startswith(LOSS_PART)
        ]
        self.seconds: list[float] = []

    def time(self, steps: int) -> float:
        """Returns the seconds of a step."""
        seconds, _ = self._run(steps)
        self.seconds.append(seconds)
        return seconds

    def agrees_with(self, other: "_Contender") -> bool:
        """Whether the first steps have had the same loss."""
        pairs = zip(self.loss, other.loss, strict=True)
        return all(
            np.allclose(a, b, rtol=_TOLERANCE, equal_nan=True) for a, b in pairs
        )

    def _run(self, steps: int) -> tuple[float, Sums]:
        begin = time.perf_counter()
        (sums,) = self.runner(self._input, steps)
        _ = sums.rows  # Reading them waits for the device.
        return (time.perf_counter() - begin) / steps, sums


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
    with trainer.accounts.phase("calibration"), _scratch(trainer):
        begin = time.perf_counter()
        graph = _Contender(trainer, batches, Form.GRAPH)
        # The other forms begin with the same state.
        with trainer.state.unchanged():
            once = graph.time(1)
            count = int(np.clip(_ROUND_SECONDS / once, 1, _MOST_STEPS))
            expected = steps * graph.time(count)
        del graph.seconds[0]  # Of a single step, which is mostly the call.
        if expected < _WORTH_SECONDS:
            timed, is_complete = [graph], False
            why = f"{expected:.0f} s of training are too short to try others"
        else:
            budget = max(_BUDGET_SECONDS, _BUDGET_SHARE * expected)
            end = begin + budget
            others = [form for form in forms if form.uses_xla]
            timed, is_complete = _in_time(
                trainer, batches, graph, others, end=end
            )
            why = "it is the fastest here"
            for _ in range(_ROUNDS):
                for one in timed:
                    one.time(count)
        # Of the fastest round: whatever else the machine did has slowed the
        # others down.
        rates = {one.form: 1.0 / min(one.seconds) for one in timed}
        best = max(timed, key=lambda one: rates[one.form])
        if rates[best.form] < _GAIN * rates[Form.GRAPH]:
            best = graph
        trainer.use_form(best.form, best.runner)
    return Timing(
        best=best.form,
        steps_per_second={form: round(rate, 1) for form, rate in rates.items()},
        why=why,
        is_complete=is_complete,
    )


def _in_time(
    trainer: RunningTrainer,
    batches: Batches,
    graph: _Contender,
    others: Sequence[Form],
    *,
    end: float,
) -> tuple[list[_Contender], bool]:
    """Compiles forms until the time is up.

    Returns:
        Those that are usable, the graph among them, and whether there was time
        for all.
    """
    usable = [graph]
    # The one that promises most comes first.
    for form in reversed(others):
        # A compilation cannot be stopped.
        will_take = _COMPILE_PER_TRACE * graph.trace_seconds
        if time.perf_counter() + will_take > end:
            return usable, False
        try:
            made = _Contender(trainer, batches, form)
        # XLA, TensorFlow, Keras and research code raise whatever they like: all
        # of it means that this form cannot be had.
        except Exception as error:
            logging.info("The step cannot be compiled as %s: %s", form, error)
            continue
        # XLA makes other floating-point numbers of the same random bits.
        if trainer.parts.randomness.was_drawn or made.agrees_with(graph):
            usable.append(made)
        else:
            logging.warning(
                "Compiled as %s, the first steps have other losses than as a "
                "graph (%s, not %s), so the step is not compiled so.",
                form,
                made.loss,
                graph.loss,
            )
    return usable, True


@contextlib.contextmanager
def _scratch(trainer: RunningTrainer) -> Iterator[None]:
    """Sets everything back that steps change."""
    carried = trainer.parts.metrics.carried_variables
    before = [variable.numpy() for variable in carried]
    with trainer.state.unchanged():
        yield
    for variable, value in zip(carried, before, strict=True):
        variable.assign(value)
