"""Which compiled form the steps of a run have, by their number.

`jit_compile="auto"` means the graph up to step `FIRST_CHOSEN`, and afterwards
the form that `trainer.step.form_rule` chooses. So short runs compile nothing,
and the computation depends neither on the clock nor on earlier attempts: a run
that is resumed, lengthened or repeated has the same forms as an unbroken one.
"""

from typing import Any

import keras
import numpy as np
from absl import logging

from trainer.data.batches import Batches
from trainer.data.feeding import exact, feeder
from trainer.data.stacks import StackReader
from trainer.errors import UserError
from trainer.loop.rollback import without_skipped
from trainer.loop.run import Run
from trainer.runtime.process_exit import headline
from trainer.step.form_rule import Facts, form_of, other_numbers, types_of
from trainer.step.forms import Form
from trainer.step.keras.private import all_layers
from trainer.step.logs import LOSS_PART
from trainer.step.lookups import TYPE
from trainer.strategy.checks import why_not_in_form
from trainer.strategy.graph_loop import GraphLoop

# Steps before this one are a graph under "auto": about as many as XLA needs
# to make good for its compilation. A host loop ends here.
FIRST_CHOSEN = 500
# Steps whose losses are compared, and what differs only by rounding.
_COMPARED, _TOLERANCE = 2, 1e-2


class CompiledForm:
    """Gives a run the form that its next steps have.

    Args:
        run: whose steps.
        batches: its training data.
        compared: by form, why its first losses rule it out, or an empty
            string; kept in checkpoints, so that the answer is that of the
            run's first attempt.

    Attributes:
        why: why the steps have their form, as a clause.
    """

    def __init__(
        self, run: Run, batches: Batches, *, compared: dict[str, str]
    ) -> None:
        self._run = run
        self._batches = batches
        self._compared = compared
        self._asked = None if run.spec.may_choose_form else run.spec.form
        self._is_early = True
        self.why = f"steps before {FIRST_CHOSEN} are not compiled"

    def next_change(self, step: int) -> int | None:
        """The first step after `step` from which steps may differ in form."""
        is_open = self._asked is None and step < FIRST_CHOSEN
        return FIRST_CHOSEN if is_open else None

    def is_due(self, step: int) -> bool:
        """Whether the steps after this one may have another form."""
        return self._is_early and self.next_change(step) is None

    def take(self) -> None:
        """Gives the run, which is prepared, the form of its next steps.

        Raises:
            UserError: the form that was asked for cannot be had.
        """
        run, batches = self._run, self._batches
        self._is_early = self.next_change(run.step) is not None
        if self._is_early:
            run.use_form(Form.GRAPH)
            return
        # What was found out about a step holds while all of this is the same.
        key = (
            *("form", self._asked, id(run.spec.tried), *run.traced_for),
            *(str(batches.element_spec), batches.resume),
            batches.why_not_stacked(),
        )
        find = self._choose if self._asked is None else self._required
        form, self.why = run.runner(key, find)
        run.use_form(form)

    def _required(self) -> tuple[Form, str]:
        """Makes sure that the form that was asked for can be had."""
        asked = self._asked
        assert asked is not None
        reason = self._why_not(asked)
        if reason is None and asked.uses_xla:
            _, reason = self._tried(asked)
        if reason is not None:
            raise UserError(
                f"jit_compile: the step cannot be compiled as {asked}: "
                f"{reason}. A run whose --jit_compile is graph needs no XLA."
            )
        return asked, "it was asked for"

    def _choose(self) -> tuple[Form, str]:
        """The form by the rule, unless it cannot be had, and why."""
        form, why = self._by_rule()
        if form is not Form.GRAPH:
            found = self._compared.get(form)
            # What was compared is only compiled.
            losses, reason = ([], found) if found else self._tried(form)
            if found is None and reason is None:
                reason = _differ(form, losses, self._tried(Form.GRAPH)[0])
                self._compared[form] = reason or ""
            if reason is not None:
                logging.warning("The steps stay a graph: %s.", reason)
                form, why = Form.GRAPH, reason
        logging.info(
            "From step %d on, the steps are compiled as %s, because %s.",
            FIRST_CHOSEN,
            form,
            why,
        )
        return form, why

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
        if legal == [Form.GRAPH]:
            return Form.GRAPH, "nothing else is possible here"
        run.use_form(Form.GRAPH)
        self._trace()
        graph = run.train_runner
        if not isinstance(graph, GraphLoop):
            return Form.GRAPH, "their strategy has a loop of its own"
        if run.parts.untracked.lost:
            return Form.GRAPH, "they change state that no trial can restore"
        types = types_of(graph.step_graph)
        # Such as in a loop, or with an axis or a table that varies.
        if types[TYPE] > len(run.spec.lookups.found):
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
            return reason and f"{form} takes rows of arrays, but {reason}"
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
        run.tell(f"compiling the step as {form}")
        try:
            run.use_form(form)
            iterator = self._trace()
            others: list[str] = []
            if isinstance(run.train_runner, GraphLoop):
                others = other_numbers(types_of(run.train_runner.step_graph))
            if others and form.uses_xla:
                return (
                    [],
                    f"XLA draws different numbers for {', '.join(others)}",
                )
            # What cannot be set back must not be changed.
            if run.parts.untracked.lost:
                return [], None
            with run.state.unchanged():
                (sums,) = run.train_runner(iterator, _COMPARED)
                totals = sums.total
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


def training_input(run: Run, batches: Batches, *, start: int) -> Any:
    """Makes what the train runner reads.

    Args:
        run: whose steps take it.
        batches: the training data. Batches that a guard has skipped are left
            out.
        start: the step that takes the first batch.
    """
    plugin = run.plugin
    wanted = without_skipped(
        batches, run.model_dir, by_step=plugin.options.batches_by_step
    )
    if run.spec.form is Form.XLA_STACK:
        return StackReader(wanted, start=start)
    make_dataset = feeder(
        wanted,
        start=start,
        num_replicas=plugin.num_replicas,
        micro=run.spec.accumulation_steps,
        fit=exact if plugin.options.static_shapes else None,
    )
    return plugin.distribute(make_dataset, training=True)


def _differ(
    form: Form, losses: list[np.ndarray], of_graph: list[np.ndarray]
) -> str | None:
    """Says in what first losses differ by more than rounding."""
    for own, its in zip(losses, of_graph, strict=True):
        if not np.allclose(own, its, rtol=_TOLERANCE, equal_nan=True):
            return (
                f"compiled as {form}, they have different losses ({own}, {its})"
            )
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
