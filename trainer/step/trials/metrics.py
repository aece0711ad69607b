"""Finds out, before the first step, how to measure each metric.

Most Keras metrics are known to add up and need no trial. Any other metric is
tried once, on the first batch. If it does not add up, its state is carried
from step to step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted, graph_function
from trainer.step.keras.private import (
    is_built,
    keras_mask,
    set_keras_mask,
    symbolic_outputs,
)
from trainer.step.measuring import most_examples
from trainer.step.metrics.additivity import adds_up, declared, is_sum
from trainer.step.metrics.metric_set import Measure
from trainer.step.metrics.states import Call, build
from trainer.step.metrics.whole_set import WholeSetMetric
from trainer.step.reductions.slots import Slots, write_slots
from trainer.step.spec import StepSpec


def prepare_metrics(
    spec: StepSpec, batch: Callable[[], Any], *, training: bool
) -> None:
    """Finds out how each metric is measured; call it before tracing.

    All processes of a run call this at the same time.

    Args:
        spec: what the step is made of, perhaps restored.
        batch: reads the first batch.
        training: whether to train or only to evaluate.

    Raises:
        UserError: a metric cannot be computed under this strategy.
    """
    metrics = spec.parts.metrics
    if not training:
        _check_whole_sets(spec)
    metrics.in_pieces = not spec.is_whole(training=True)
    y_pred = symbolic_outputs(spec.model)
    first = _FirstBatch(spec, batch, training=training)
    if not metrics.is_bound:
        given = keras.tree.flatten(metrics.given)
        if y_pred is None or not all(map(_is_known, given)):
            metrics.bind(first.y, first.outputs)
        elif not spec.has_own("forward"):
            metrics.bind(None, y_pred)
        # Otherwise, with an overridden `forward`, the traced step binds them.
    found = {
        name: _try(first, name, measure)
        for name, measure in metrics.measures.items()
        if measure.adds_up is None and _is_open(spec, measure, y_pred)
    }
    # All processes must decide alike: what does not add up in one of them does
    # not in any.
    no_sums = spec.plugin.any_of([not added for added in found.values()])
    for name, is_no_sum in zip(found, no_sums, strict=True):
        metrics.judged[name] = not is_no_sum
        metrics.measures[name].decide(adds_up=not is_no_sum)
    for name, measure in metrics.measures.items():
        if measure.adds_up is False:
            _check_carried(first, name, measure)
    metrics.is_ready = True


def _is_known(one: Any) -> bool:
    """Whether a metric as it was given needs neither shapes nor a trial."""
    return (
        one is None
        or isinstance(one, WholeSetMetric)
        or (isinstance(one, keras.Metric) and is_sum(one) and is_built(one))
    )


def _check_whole_sets(spec: StepSpec) -> None:
    given = keras.tree.flatten(spec.parts.metrics.given)
    names = [one.name for one in given if isinstance(one, WholeSetMetric)]
    if names and not spec.options.evaluates_here:
        raise UserError(
            f"The metric {names[0]!r} needs the predictions for a whole "
            "evaluation set in this process, which does not get them under "
            f"the strategy {spec.plugin.name!r}. Set --mode=train, and measure "
            "with another --strategy: --mode=continuous_eval."
        )


def _is_open(spec: StepSpec, measure: Measure, y_pred: Any) -> bool:
    """Whether a trial is needed to know how a metric is measured."""
    metric, whole = measure.metric, spec.is_whole(training=True)
    if measure.of_whole_set:
        return False
    if not is_sum(metric) or not is_built(metric):
        # A layer's own Mean or Sum adds up over steps; over pieces it depends
        # on what the layer passes to it.
        is_plain = type(metric) in (keras.metrics.Mean, keras.metrics.Sum)
        return not (is_plain and measure.in_layer and whole)
    if whole or declared(metric):
        return False
    if measure.in_layer:
        return True
    # Keras takes the mean over the last axis, which for outputs of rank 1 is
    # the batch: that mean does not add up over pieces.
    return not spec.has_own("train_step") and (
        y_pred is None
        or any(len(one.shape) < 2 for one in keras.tree.flatten(y_pred))
    )


class _FirstBatch:
    """What metrics get for the first batch, and for pieces of it."""

    def __init__(
        self, spec: StepSpec, batch: Callable[[], Any], *, training: bool
    ) -> None:
        self.spec = spec
        self.training = training
        self._read = batch

    @functools.cached_property
    def _batch(self) -> tuple[Any, Any, Any]:
        batch = self._read()
        # As in `trainer.step.replica_batch.weighted`.
        if isinstance(batch, list | tuple) and len(batch) > 3:
            batch = (batch,)
        return keras.utils.unpack_x_y_sample_weight(batch)

    @functools.cached_property
    def rows(self) -> int:
        """How many examples it has."""
        return int(tf.nest.flatten(self._batch)[0].shape[0])

    @functools.cached_property
    def pieces(self) -> list[tuple[int, int]]:
        """Where uneven pieces of it begin and end."""
        # 3/5, 2/5 less one, and one example: equal pieces would let a mean of
        # means pass as a sum.
        cuts = sorted({0, -(-self.rows * 3 // 5), self.rows - 1, self.rows})
        return list(zip(cuts, cuts[1:], strict=False))

    @property
    def y(self) -> Any:
        """Its targets."""
        return self._batch[1]

    @functools.cached_property
    def outputs(self) -> Any:
        """The specs of the model's outputs: it is traced, but not run."""

        def forward(x: Any) -> Any:
            return self._forward(x, training=False)[0]

        traced = graph_function(forward).get_concrete_function(self._batch[0])
        return traced.structured_outputs

    @functools.cached_property
    def calls(self) -> dict[str, list[Call]]:
        """The updates of all metrics by the whole batch."""
        return self._calls(*self._batch)

    @functools.cached_property
    def calls_of_pieces(self) -> list[dict[str, list[Call]]]:
        """The updates by its pieces, where the model sees each by itself."""
        return [
            self._calls(
                *tf.nest.map_structure(
                    lambda leaf, a=a, b=b: None if leaf is None else leaf[a:b],
                    self._batch,
                )
            )
            for a, b in self.pieces
        ]

    def has_rows(self, name: str) -> bool:
        """Whether a metric is given one row for each example."""
        return all(
            leaf.shape.rank and leaf.shape[0] == self.rows
            for leaf in _leaves(self.calls[name])
        )

    def sliced(self, name: str) -> list[list[Call]]:
        """The updates by the rows of each piece."""
        return [_slice(self.calls[name], a, b) for a, b in self.pieces]

    def _calls(self, x: Any, y: Any, weight: Any) -> dict[str, list[Call]]:
        metrics = self.spec.parts.metrics
        y_pred, noted = self._forward(x, training=False)
        found = metrics.layer_calls(noted)
        # Some layers update a metric only in training.
        if self.training and not all(found.values()):
            _, in_training = self._forward(x, training=True)
            for name, calls in metrics.layer_calls(in_training).items():
                found[name] = found[name] or calls
        if any(not m.in_layer for m in metrics.measures.values()):
            found |= metrics.calls(y, y_pred, weight)
        return found

    def _forward(self, x: Any, *, training: bool) -> tuple[Any, Any]:
        """Calls the model without changing its variables."""
        layers = self.spec.parts.metrics.in_layers
        with keras.StatelessScope(), layers.listening() as noted:
            forward = converted(self.spec.methods.forward)
            y_pred = forward(x, training=training)
        return y_pred, noted


def _try(first: _FirstBatch, name: str, measure: Measure) -> bool:
    """Whether a metric adds up; a stored answer saves the trial."""
    spec, metric = first.spec, measure.metric
    try:
        calls = first.calls[name]
    except Exception:
        if not spec.has_own("train_step"):
            raise
        # Only the overridden step knows targets and outputs: the plain call
        # may well fail.
        if not is_built(metric):
            raise UserError(
                f"The metric {name!r} takes its shape from what it is first "
                "updated by, which only the train_step knows. Update it there "
                "with what Trainer.forward returns, or give it its shape."
            ) from None
        return is_sum(metric)
    if not calls:  # A layer does not update it, such as one that is not used.
        return True
    with spec.plugin.scope():
        build(metric, calls)
    # Only now does the metric have variables.
    measure.begin()
    judged = spec.parts.metrics.judged.get(name)
    # A resumed run must measure as before, even if rounding made the trial come
    # out differently.
    if isinstance(judged, bool):
        return judged
    said = declared(metric)
    if said is not None:
        return said
    if first.has_rows(name):
        return adds_up(metric, calls, first.sliced(name))
    pieces = [found[name] for found in first.calls_of_pieces]
    return adds_up(metric, calls, pieces)


def _check_carried(first: _FirstBatch, name: str, measure: Measure) -> None:
    """Refuses a metric that is no sum, where that is not possible.

    Raises:
        UserError: a training batch is cut; or an evaluation cannot gather what
            the metric is updated by.
    """
    spec = first.spec
    what = (
        f"The state of the metric {name!r} ({type(measure.metric).__name__}) "
        "does not add up"
    )
    if not spec.options.carries_states:
        raise UserError(
            f"{what}: it depends on the order and size of batches, which the "
            f"strategy {spec.plugin.name!r} does not define. Valid are metrics "
            "that sum over examples, such as those made of keras.metrics.Mean."
        )
    if first.training and not spec.is_whole(training=True):
        raise UserError(
            f"{what} over the pieces that replicas or micro-batches make of a "
            "training batch. Measure it in evaluations alone, by "
            "trainer.WholeSetMetric, or train on one replica without "
            "accumulation_steps. If it is a sum over examples, say so: "
            "additive = True in its class, or trainer.additive(metric)."
        )
    if spec.is_whole(training=False) or spec.has_own("eval_step"):
        return  # A step of research code is checked when it is traced.
    most_examples(spec, training=False)
    if not first.has_rows(name):
        giver = "the model"
        if measure.in_layer:
            layer = spec.parts.metrics.in_layers.layer_of(measure.metric)
            giver = f"the layer {layer!r}"
        raise UserError(
            f"{what} over the pieces of a batch, and {giver} does not give it "
            "one row per example. Update it with one value for each example, "
            "of shape [batch] or [batch, ...]."
        )
    # Written once now, so that a dtype that cannot travel is refused before the
    # first step.
    slots = Slots(tf.constant(0), 1, first.rows)
    write_slots(_leaves(first.calls[name]), slots)


def _leaves(calls: Sequence[Call]) -> list[Any]:
    return [
        leaf
        for leaf in tf.nest.flatten([tuple(call) for call in calls])
        if tf.is_tensor(leaf)
    ]


def _slice(calls: Sequence[Call], begin: int, end: int) -> list[Call]:
    def cut(leaf: Any) -> Any:
        if not tf.is_tensor(leaf):
            return leaf
        part = leaf[begin:end]
        mask = keras_mask(leaf)
        if mask is not None:
            set_keras_mask(part, mask[begin:end])
        return part

    return [Call(*tf.nest.map_structure(cut, tuple(call))) for call in calls]
