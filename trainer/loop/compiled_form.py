"""Which compiled form the steps of a run have, by their number.

`jit_compile="auto"` means the graph up to step `FIRST_CHOSEN`, and from there
on what `trainer.step.form_rule` says of the step. So short runs compile
nothing, and no clock and no earlier attempt decides what is computed: a run
that is resumed, lengthened or repeated has the forms of one that was not.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

from trainer.data import Batches, Resume
from trainer.errors import UserError
from trainer.loop.run import Run
from trainer.loop.training_input import training_input
from trainer.runtime.process_exit import headline
from trainer.step.form_rule import Facts, form_of, other_numbers, types_of
from trainer.step.forms import Form
from trainer.step.keras.private import all_layers
from trainer.step.logs import LOSS_PART
from trainer.step.lookups import TYPES
from trainer.strategy.checks import why_not_in_form
from trainer.strategy.graph_loop import GraphLoop, Runner

# Steps before this one are a graph under "auto": about as many as XLA needs
# to make good for its compilation. A host loop ends here.
FIRST_CHOSEN = 500
# Steps whose losses are compared, and what differs only by rounding.
_COMPARED, _TOLERANCE = 2, 1e-2


class CompiledForm:
    """Gives a run the form that its next steps have.

    Args:
        run: built, and prepared for tracing.
        batches: its training data.
        last: of the steps before, or of the call of `train` before this one.
        compared: by form, why its first losses rule it out, or an empty
            string; kept in checkpoints, so that the answer is that of the
            run's first attempt.

    Attributes:
        why: why the steps have their form, as a clause.
    """

    def __init__(
        self,
        run: Run,
        batches: Batches,
        *,
        last: "CompiledForm | None",
        compared: dict[str, str],
    ) -> None:
        self._run = run
        self._batches = batches
        self._compared = compared
        self._asked = None if run.spec.may_choose_form else run.spec.form
        self._chosen: Form | None = None
        self.why = f"steps before {FIRST_CHOSEN} are not compiled"
        # What was found out about a step holds while that is the same.
        self._about = (
            run.spec.tried,
            [id(variable) for variable in run.model.trainable_variables],
            str(batches.element_spec),
            batches.resume,
            batches.why_not_stacked(),
        )
        if last is not None and last._is_about(self._about):
            self._chosen, self.why = last._chosen, last.why

    def _is_about(self, about: tuple[Any, ...]) -> bool:
        # Every spec has a set of its own, and those of two are often equal.
        return self._about[0] is about[0] and self._about[1:] == about[1:]

    def next_change(self, step: int) -> int | None:
        """The first step after `step` from which steps may differ in form."""
        is_open = self._asked is None and step < FIRST_CHOSEN
        return FIRST_CHOSEN if is_open else None

    def is_due(self, step: int) -> bool:
        """Whether the steps after this one may have another form."""
        is_open = self._asked is None and step >= FIRST_CHOSEN
        return is_open and self._run.spec.form is not self._chosen

    def take(self) -> None:
        """Gives the run the form of the steps that come next.

        Raises:
            UserError: the form that was asked for cannot be had.
        """
        step = self._run.step
        if self._asked is None and step < FIRST_CHOSEN:
            self._use(Form.GRAPH)
            return
        if self._chosen is None:
            chosen = self._choose() if self._asked is None else self._required()
            self._chosen = chosen
            if self._asked is None:
                logging.info(
                    "From step %d on the steps are compiled as %s, because %s.",
                    FIRST_CHOSEN,
                    chosen,
                    self.why,
                )
        self._use(self._chosen)

    def _use(self, form: Form) -> None:
        self._run.use_form(form)

    def _required(self) -> Form:
        """Makes sure that the form that was asked for can be had."""
        asked = self._asked
        assert asked is not None
        self.why = "it was asked for"
        reason = self._why_not(asked)
        if reason is None and asked.uses_xla:
            _, reason = self._tried(asked)
        if reason is not None:
            raise UserError(
                f"jit_compile: the step cannot be compiled as {asked}: "
                f"{reason}. A run whose --jit_compile is graph needs no XLA."
            )
        return asked

    def _choose(self) -> Form:
        form, self.why = self._by_rule()
        if form is Form.GRAPH:
            return form
        self._use(form)
        is_compared = form in self._compared
        reason: str | None = self._compared.get(form) or None
        if reason is None:
            losses, reason = self._tried(form)
            if reason is None and not is_compared:
                self._use(Form.GRAPH)
                reason = _differ(form, losses, self._tried(Form.GRAPH)[0])
                self._compared[form] = reason or ""
        if reason is None:
            return form
        logging.warning("The steps stay a graph: %s.", reason)
        self.why = reason
        return Form.GRAPH

    def _by_rule(self) -> tuple[Form, str]:
        run, plugin = self._run, self._run.plugin
        if run.spec.run_eagerly:
            return Form.GRAPH, "they run as Python"
        # All of this is alike in every process of a run.
        if not plugin.is_alone or plugin.num_replicas > 1:
            return Form.GRAPH, "other forms are not measured on many replicas"
        if "CPU" not in plugin.devices()[0].upper():
            return Form.GRAPH, "other forms are not measured on this device"
        legal = [form for form in Form if self._why_not(form) is None]
        if self._batches.resume is not Resume.SEEK and Form.XLA_STACK in legal:
            # They would be read once more, up to the present one.
            legal.remove(Form.XLA_STACK)
        if legal == [Form.GRAPH]:
            return Form.GRAPH, "nothing else is possible here"
        self._use(Form.GRAPH)
        self._trace()
        graph = run.train_runner
        if not isinstance(graph, GraphLoop):
            return Form.GRAPH, "their strategy has a loop of its own"
        if run.parts.untracked.lost:
            return Form.GRAPH, "they change what no trial can set back"
        types = types_of(graph.step_graph)
        # Such as in a loop, or with an axis or a table that varies.
        if sum(types[one] for one in TYPES) > len(run.spec.lookups.found):
            return Form.GRAPH, "XLA does not check the bounds of its lookups"
        facts = Facts.of(graph.step_graph, batch_size=run.spec.batch_size)
        return form_of(facts, legal)

    def _why_not(self, form: Form) -> str | None:
        """Why a run's steps cannot have a form; `None` if they can."""
        run, plugin = self._run, self._run.plugin
        reason = why_not_in_form(plugin, form, run.spec.accumulation_steps)
        if reason is None and form.uses_xla and plugin.num_replicas > 1:
            reason = _why_not_on_each_replica(run)
        if reason is None and form is Form.XLA_STACK:
            for name, measure in run.parts.metrics.measures.items():
                if measure.adds_up is False:
                    return f"the host updates the metric {name!r} in each step"
            reason = self._batches.why_not_stacked()
            return reason and f"{form} needs batches of a known shape: {reason}"
        return reason

    def _trace(self) -> Any:
        """Traces the present form; returns an input of its own."""
        run = self._run
        # From the beginning: other steps may take long to reach.
        iterator = training_input(run, self._batches, start=0)
        run.train_runner.trace(iterator)
        return iterator

    def _tried(self, form: Form) -> tuple[list[np.ndarray], str | None]:
        """Compiles a form, and makes steps that leave no trace.

        Returns:
            The sums of their losses, and why the form cannot be had.
        """
        run = self._run
        try:
            self._use(form)
            iterator = self._trace()
            others = _others(run.train_runner) if form.uses_xla else []
            if others:
                return [], f"XLA draws other numbers for {', '.join(others)}"
            # What cannot be set back must not be changed.
            if run.parts.untracked.lost:
                return [], None
            with _without_trace(run):
                (sums,) = run.train_runner(iterator, _COMPARED)
                totals = sums.total()
        # XLA, TensorFlow, Keras and research code raise whatever they like: all
        # of it means that this form cannot be had.
        except Exception as error:
            if form is Form.GRAPH:
                raise
            return [], f"XLA cannot compile the step: {headline(error)}"
        return [
            np.asarray(value)
            for name, value in totals.items()
            if name == "loss" or name.startswith(LOSS_PART)
        ], None


def _others(runner: Runner) -> list[str]:
    """The operations of a program for XLA that draw other numbers."""
    if not isinstance(runner, GraphLoop):
        return []
    return other_numbers(types_of(runner.step_graph))


def _differ(
    form: Form, losses: list[np.ndarray], of_graph: list[np.ndarray]
) -> str | None:
    """Says in what first losses differ by more than rounding."""
    for own, its in zip(losses, of_graph, strict=True):
        if not np.allclose(own, its, rtol=_TOLERANCE, equal_nan=True):
            return f"compiled as {form}, they have other losses ({own}, {its})"
    return None


def _why_not_on_each_replica(run: Run) -> str | None:
    """Why XLA cannot compile the gradients that each of several computes."""
    # XLA knows no reduction over the replicas of `tf.distribute`.
    if run.spec.has_own("train_step"):
        return "a train_step of its own may reduce over replicas anywhere"
    norm = keras.layers.BatchNormalization
    for layer in all_layers(run.model):
        if isinstance(layer, norm):
            return f"the layer {layer.name!r} reduces over replicas"
    return None


@contextlib.contextmanager
def _without_trace(run: Run) -> Iterator[None]:
    """Sets everything back that steps change, whatever happens."""
    parts, step = run.parts, run.step
    states = {name: {**its} for name, its in parts.metrics.states.items()}
    try:
        with run.state.unchanged():
            yield
    finally:
        parts.metrics.states = states
        if parts.guard is not None:
            parts.guard.forget()
        run.step = step
