"""Tries one compiled form of a step."""

import math
import time
from collections.abc import Iterable

import numpy as np

from trainer.data import Batches
from trainer.data.stacks import is_like_pieces
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.training_input import training_input
from trainer.loop.without_trace import without_trace
from trainer.runtime.exit_report import headline
from trainer.step.forms import Form
from trainer.step.logs import LOSS_PART
from trainer.step.reductions.sums import Sums

# Steps after which the losses of two forms are compared.
_COMPARED = 2
# Losses that differ by less than this share differ by rounding.
_TOLERANCE = 1e-2
# Types of operations that act outside of the graph.
PYTHON = {"EagerPyFunc", "Print", "PrintV2", "PyFunc", "PyFuncStateless"}


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
    return sorted(PYTHON.intersection(operations))


def why_unusable(
    trainer: RunningTrainer, batches: Batches, form: Form
) -> str | None:
    """Compiles a form, and makes two steps that leave no trace.

    Returns:
        Why it cannot be had; `None` if it can. The trainer has it then.
    """
    with trainer.accounts.phase("compile"):
        made = compiled(trainer, batches, form)
    return made if isinstance(made, str) else None


def compiled(
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
