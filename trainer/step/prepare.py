"""Checks on the first batch, before a step is traced.

If steps cut a batch, the probe checks that they may. Most Keras metrics
are known to add up. Any other is tried, and if it does not add up, it is
refused where a training batch is cut.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from trainer.errors import UserError
from trainer.step.keras.private import (
    compiled_with,
    is_built,
    is_of_keras,
    symbolic_outputs,
)
from trainer.step.metrics.states import (
    Kept,
    Measure,
    Ordered,
    WholeSetMetric,
    build,
    declared,
    is_sum,
    keeps,
)
from trainer.step.probe import Probe, adds_up
from trainer.step.spec import StepSpec


def prepare(spec: StepSpec, *, training: bool) -> None:
    """Tries a step, and finds out how its metrics are measured.

    The first batch is read at most once, and only if something must be tried.
    All processes of a run call this at the same time.

    Args:
        spec: what the step is made of, perhaps restored.
        training: whether to train or only to evaluate.

    Raises:
        UserError: something cannot be used under this strategy.
    """
    first = functools.cache(lambda: first_batch(spec, training=training))
    probe = functools.cache(lambda: Probe(spec, first(), training=training))
    is_cut = not spec.is_whole(training=training)
    if is_cut or spec.options.static_shapes:
        spec.batches("train" if training else "eval").check_cut(first)
    _check_loss_of_model(spec, is_cut=is_cut)
    name = "training" if training else "evaluation"
    if is_cut and spec.probe and name not in spec.tried:
        spec.tried.add(name)
        found = probe().finding()
        # In all processes, or the others would wait for this one.
        (is_bad,) = spec.plugin.any_of([found is not None])
        if is_bad:
            raise UserError(
                found
                or "Another process has found that the step depends on how a "
                "batch is cut: see its error message."
            )
    _prepare_metrics(spec, probe, training=training)


def _check_loss_of_model(spec: StepSpec, *, is_cut: bool) -> None:
    """Refuses a model's own `compute_loss` where it would not do.

    Raises:
        UserError: it is one number for a part of a batch, or not called.
    """
    if spec.has_own("train_step") or is_of_keras(spec.model, "compute_loss"):
        return
    own = {"per_example_loss", "global_loss"} & spec.overridden
    is_whole = not is_cut and not spec.options.static_shapes
    given = any(one is not None for one in keras.tree.flatten(spec.loss))
    is_known = not given or compiled_with(spec.model).get("loss")
    if own or not is_whole or not is_known:
        raise UserError(
            f"{type(spec.model).__name__}.compute_loss is overridden, and "
            "returns one number for a batch. It is only called on one device "
            "without accumulation_steps, if the Trainer has no loss of its "
            "own. Otherwise, move it to Trainer.per_example_loss."
        )


def first_batch(spec: StepSpec, *, training: bool) -> Any:
    """The first global batch of a split, whole."""
    batches = spec.batches("train" if training else "eval")
    batch = next(iter(batches.read(start=0)))
    # As in `trainer.step.replica_batch.weighted`.
    is_long = isinstance(batch, list | tuple) and len(batch) > 3
    return (batch,) if is_long else batch


def _prepare_metrics(
    spec: StepSpec, probe: Callable[[], Probe], *, training: bool
) -> None:
    """Finds out how each metric is measured.

    Raises:
        UserError: a metric cannot be computed under this strategy.
    """
    metrics = spec.parts.metrics
    if not training:
        _check_whole_sets(spec)
    metrics.is_cut = not spec.is_whole(training=True)
    y_pred = symbolic_outputs(spec.model)
    if not metrics.is_bound:
        given = keras.tree.flatten(metrics.given)
        if y_pred is None or not all(map(_is_known, given)):
            probe()  # A step that is run binds them.
        elif not spec.has_own("forward"):
            metrics.bind(None, y_pred)
        # Otherwise, with an overridden `forward`, the traced step binds them.
    found = {
        name: _kind_of(spec, probe(), name)
        for name, measure in metrics.measures.items()
        if measure.adds_up is None and _is_open(spec, measure, y_pred)
    }
    # All processes must decide alike: what does not add up in one of them does
    # not in any.
    no_sums = spec.plugin.any_of([one is not Measure for one in found.values()])
    for (name, kind), is_no_sum in zip(found.items(), no_sums, strict=True):
        other = Ordered if is_no_sum else Measure
        metrics.decide(name, other if kind is Measure else kind)
    for name, measure in metrics.measures.items():
        if measure.adds_up is False:
            _check_carried(spec, name, measure, training=training)


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
        # A layer's own Mean or Sum adds up over steps; over parts of a batch
        # it depends on what the layer passes to it.
        is_plain = type(metric) in (keras.metrics.Mean, keras.metrics.Sum)
        return not (is_plain and measure.in_layer and whole)
    if whole or declared(metric):
        return False
    if measure.in_layer:
        return True
    # Keras takes the mean over the last axis, which for outputs of rank 1 is
    # the batch: that mean does not add up over parts of it.
    outputs = keras.tree.flatten(y_pred)
    is_flat = y_pred is None or any(len(one.shape) < 2 for one in outputs)
    return is_flat and not spec.has_own("train_step")


def _kind_of(spec: StepSpec, probe: Probe, name: str) -> type[Measure]:
    """How a metric is measured."""
    metrics = spec.parts.metrics
    measure = metrics.measures[name]
    metric, error = measure.metric, probe.whole.error
    if error is not None and not spec.has_own("train_step"):
        raise error
    calls = probe.whole.measured.get(name)
    if calls is None:
        # Only the overridden step knows targets and outputs, or it failed.
        if not is_built(metric):
            raise UserError(
                f"The metric {name!r} takes its shape from what it is first "
                "updated by, which only the train_step knows. Update it there "
                "with what Trainer.forward returns, or give it its shape."
            )
        if keeps(metric, ()):
            return Kept
        return Measure if is_sum(metric) or declared(metric) else Ordered
    if not calls:  # A layer does not update it, such as one not used.
        return Measure
    with spec.plugin.scope():
        build(metric, calls)
    # Only now does the metric have variables.
    measure.begin()
    if keeps(metric, calls):
        return Kept
    if (said := declared(metric)) is not None:
        return Measure if said else Ordered
    parts = [one.measured[name] for one in probe.parts]
    return Measure if adds_up(metric, calls, parts) else Ordered


def _check_carried(
    spec: StepSpec, name: str, measure: Measure, *, training: bool
) -> None:
    """Refuses a metric that is no sum, where that is not possible.

    Whether replicas can exchange what it is updated by in an evaluation shows
    as that is traced.

    Raises:
        UserError: the strategy does not define an order of batches, or a
            training batch is cut.
    """
    kind, is_kept = type(measure.metric).__name__, isinstance(measure, Kept)
    why = ", of which reset_state keeps something," if is_kept else ""
    what = f"The state of the metric {name!r} ({kind}){why} does not add up"
    if not spec.options.evaluates_here:
        raise UserError(
            f"{what}, so this process must see whole batches, which it does "
            f"not get under the strategy {spec.plugin.name!r}. Measure it "
            "with another --strategy: --mode=continuous_eval."
        )
    if training and not spec.options.carries_states:
        raise UserError(
            f"{what}: it depends on the order and size of batches, which the "
            f"strategy {spec.plugin.name!r} does not define. Valid are metrics "
            "that sum over examples, such as those made of keras.metrics.Mean."
        )
    if training and not spec.is_whole(training=True):
        or_else = (
            " If it is a sum over examples, say so: additive = True in its "
            "class, or trainer.additive(metric)."
        )
        raise UserError(
            f"{what} over the parts that replicas or micro-batches make of a "
            "training batch. Measure it in evaluations alone, by "
            "trainer.WholeSetMetric, or train on one replica without "
            f"accumulation_steps.{'' if is_kept else or_else}"
        )
