"""The metrics of a run: their sums from a step, and their results.

In training metrics are sums: those of Keras that are known to be, those that
say so (`additive = True`, or `trainer.additive`), and those that are found to
be. Any other kind goes from step to step where every step sees its global batch
whole, and is refused where a batch is cut, by replicas or micro-batches. In an
evaluation all are exact. See `trainer.step.metrics.states`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.errors import UserError
from trainer.step.context import step_context
from trainer.step.keras.private import fresh_names, keras_mask
from trainer.step.losses.outputs import Outputs, numbered_names
from trainer.step.metrics.factories import by_shape, make_metric
from trainer.step.metrics.of_layers import LayerMetrics
from trainer.step.metrics.states import (
    EVAL,
    KEPT,
    VALUES,
    Call,
    Kept,
    Measure,
    Ordered,
    WholeSet,
    WholeSetMetric,
    as_numbers,
)
from trainer.step.reductions.all_gather import all_gather
from trainer.step.replica_batch import ReplicaBatch, is_weighted

_MARKS = f"{VALUES}_marks"  # Which rows of such values are examples.

Logs = dict[str, Any]


class MetricSet:
    """The metrics of a run.

    Args:
        weighted: metrics, in a list, or by output, and names that depend on
            the shapes of an output.
        plain: the same, but without regard to sample weights, such as the
            `metrics` that a model is compiled with.
        model: the built model, which may have metrics in its layers.
        own_step: whether an overridden `train_step` chooses targets and
            outputs.

    Attributes:
        given: both, as they were given.
        measures: the metrics, by the name under which they are logged.
        in_layers: those that layers update.
        is_bound: whether it is known which metric is for which output.
        is_cut: whether a training step sees its batch in several parts.
        states: what the host keeps of metrics that are no sums, by the
            interval that is measured over, or `KEPT`, and the metric's name.

    Raises:
        UserError: an overridden step cannot have such a metric.
    """

    def __init__(
        self,
        weighted: Any,
        *,
        plain: Any = None,
        model: keras.Model,
        own_step: bool = False,
    ) -> None:
        # In this order, as in Keras' logs.
        self.given = {False: plain, True: weighted}
        self.in_layers = LayerMetrics(model)
        self.measures: dict[str, Measure] = {}
        self.states: dict[str, dict[str, Any]] = {}
        self.is_cut = False
        self._model = model
        # By a step that was traced; or it has been said that none does.
        self._measured: set[str] = set()
        # Without metrics of outputs there is nothing to bind.
        given = [one for one in keras.tree.flatten(self.given) if one]
        self.is_bound = own_step or not given
        if own_step:
            # It chooses what each is given, by keys of its own.
            for weighs, part in self.given.items():
                by_key = part if isinstance(part, dict) else {"": part}
                for key, group in by_key.items():
                    self._add_group(group, key, key, weighs, None, None)
        if self.is_bound:
            self._add_layers()

    def bind(self, y: Any, y_pred: Any) -> None:
        """Finds out which metric is for which output.

        Args:
            y: targets, of a batch or as specs; `None` where they are not
                known.
            y_pred: the model's outputs, likewise.

        Raises:
            UserError: an output that is named does not exist.
        """
        if self.is_bound:
            return
        outputs = Outputs.of(self._model, y_pred)
        targets, predicted = outputs.tensors(y), keras.tree.flatten(y_pred)
        several = len(outputs.names) > 1
        for weighs, given in self.given.items():
            if not several:
                given = [keras.tree.flatten(given)]
            groups = outputs.split(given, what="metrics")
            for i, group in enumerate(groups):
                label = outputs.labels[i] if several else ""
                shapes_of = targets[i], predicted[i]
                self._add_group(group, i, label, weighs, *shapes_of)
        self._add_layers()
        self.is_bound = True

    def _add_group(
        self,
        group: Any,
        key: int | str,
        label: str,
        weighs: bool,
        *shapes_of: Any,
    ) -> None:
        """Adds the metrics of an output, or of what a step calls by a key."""
        for one in keras.tree.flatten(group):
            if one is not None:
                made = by_shape(one, *shapes_of)
                before = f"{label}_" if label else ""
                name = f"{before}{made.name}"
                if weighs and self.given[False] and name in self.measures:
                    name = f"{before}weighted_{made.name}"
                self._add(name, made, key, is_weighted=weighs)

    def _add_layers(self) -> None:
        for metric in self.in_layers.all:
            self._add(metric.name, metric, in_layer=True)

    def _add(
        self, name: str, metric: keras.Metric, *args: Any, **kwargs: Any
    ) -> None:
        kind = WholeSet if isinstance(metric, WholeSetMetric) else Measure
        # As in Keras: two outputs of one layer, or two metrics of an output,
        # may have one name.
        numbered = numbered_names([*self.measures, name])[-1]
        self.measures[numbered] = kind(metric, *args, **kwargs)

    def decide(self, name: str, kind: type[Measure]) -> None:
        """Says what kind a metric is of, once it has been tried."""
        tried = self.measures[name]
        self.measures[name] = kind(
            tried.metric,
            tried.output,
            tried.in_layer,
            kind is Measure,
            is_weighted=tried.is_weighted,
        )

    # In a step.

    def calls(
        self, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, list[Call]]:
        """The updates of the metrics of outputs by one replica's batch.

        Args:
            y: targets.
            y_pred: the model's outputs.
            sample_weight: one weight per example; padding has zero.
        """
        # Bound here if nothing was known before tracing, as for a subclassed
        # model.
        self.bind(y, y_pred)
        outputs, found = Outputs.of(self._model, y_pred), {}

        def of(key: int | str | None, part: Any) -> Any:
            if isinstance(key, int):
                return outputs.tensors(part)[key]
            return part.get(key) if key and isinstance(part, dict) else part

        for name, measure in self.measures.items():
            if measure.in_layer:
                continue
            target, predicted, weight = (
                of(measure.output, part) for part in (y, y_pred, sample_weight)
            )
            rank = getattr(getattr(predicted, "shape", None), "rank", None)
            if measure.adds_up is None and self.is_cut and rank == 1:
                raise UserError(
                    f"The metric {name!r} gets outputs of shape [batch], of "
                    "which it takes one mean per batch. Give it [batch, 1]."
                )
            mask = keras_mask(predicted)
            if not measure.is_weighted:
                # The metric itself looks for a mask; padding never counts.
                mask = None
                weight = getattr(step_context.batch, "real", None)
            if measure.of_whole_set and mask is not None:
                _check_takes_weights(
                    name, measure.metric, "outputs have a mask"
                )
            options = {"sample_weight": _mask_weight(weight, mask)}
            found[name] = [Call((target, predicted), options)]
        return found

    def layer_calls(
        self, noted: dict[int, list[Call]]
    ) -> dict[str, list[Call]]:
        """The updates that layers have made, by the metric's name."""
        return {
            name: noted[id(measure.metric)]
            for name, measure in self.measures.items()
            if measure.in_layer
        }

    def logs(self, calls: dict[str, list[Call]]) -> Logs:
        """What a step returns of some updates."""
        if step_context.probe is not None:
            step_context.probe.measured |= calls
            return {}
        self._measured.update(calls)
        return {
            f"{self.measures[name].prefix}{name}": self.measures[name].of(its)
            for name, its in calls.items()
        }

    def gathered(
        self, logs: Logs, here: ReplicaBatch, *, training: bool
    ) -> Logs:
        """Puts together what the host gets of a global batch, on each replica.

        Args:
            logs: what a step returns on a replica.
            here: its batch.
            training: whether it is a training step: these see whole batches.

        Raises:
            UserError: replicas cannot exchange it, or the data has sample
                weights that a function of a whole set ignores.
        """
        values = {k: v for k, v in logs.items() if k.startswith(VALUES)}
        of_whole_sets = {k for k in values if self._of(k).of_whole_set}
        if training:
            return {k: v for k, v in logs.items() if k not in of_whole_sets}
        if of_whole_sets and is_weighted(here.batch):
            for key in of_whole_sets:
                _check_takes_weights(
                    key.removeprefix(VALUES),
                    self._of(key).metric,
                    "data has sample weights",
                )
        if not values or (here.shares == 1 and here.real is None):
            return logs
        for key, leaves in values.items():
            check_rows(leaves, here.rows, key.removeprefix(VALUES))
        if here.real is not None:
            values[_MARKS] = [here.real]
        return logs | all_gather(values).values

    def _of(self, key: str) -> Measure:
        return self.measures[key.removeprefix(VALUES)]

    def hand_over(
        self, logs: Logs, intervals: Sequence[str], first: Callable[[Any], Any]
    ) -> Logs:
        """Updates what the host keeps by a step, in cross-replica context.

        Args:
            logs: what the step returned.
            intervals: what is measured over.
            first: gives the first replica's part, of what is equal on all.

        Returns:
            The logs without what was used here.
        """
        values = {n: v for n, v in logs.items() if n.startswith(VALUES)}
        marks = [first(one) for one in values.pop(_MARKS, [])]
        for key, leaves in values.items():
            # Stateful, so that batches come in the order of the steps.
            tf.numpy_function(
                self._updating(key, intervals, has_marks=bool(marks)),
                [*marks, *(first(leaf) for leaf in leaves)],
                Tout=[],
            )
        return {n: v for n, v in logs.items() if not n.startswith(VALUES)}

    def _updating(
        self, key: str, intervals: Sequence[str], *, has_marks: bool
    ) -> Callable[..., None]:
        """What the host does in each step that is traced now."""
        name, measure = key.removeprefix(VALUES), self._of(key)
        assert isinstance(measure, Ordered)
        # Another step, such as one of an evaluation, may make other calls.
        rebuild = measure.rebuild
        if isinstance(measure, Kept):
            intervals = (KEPT,)

        def update(*given: np.ndarray) -> None:
            # Copied: TensorFlow owns what it passes.
            arrays = [np.array(one) for one in given[has_marks:]]
            if has_marks:
                arrays = [one[given[0] > 0] for one in arrays]
            leaves = [tf.convert_to_tensor(one) for one in arrays]
            calls = [Call(*call) for call in rebuild(leaves)]
            for interval in intervals:
                states = self.states.setdefault(interval, {})
                states[name] = measure.after(states.get(name), calls)

        return update

    # Between steps.

    def reset_kept(self) -> None:
        """Calls `reset_state` of the metrics that keep something."""
        for name, state in self.states.get(KEPT, {}).items():
            measure = self.measures.get(name)
            if isinstance(measure, Kept):
                self.states[KEPT][name] = measure.restarted(state)

    def results(
        self,
        sums: Mapping[str, Sequence[np.ndarray]],
        interval: str,
        *,
        whole_sets: bool = True,
    ) -> dict[str, float]:
        """Computes each metric from its state.

        Args:
            sums: metric name to the increments summed over a whole interval.
            interval: which one it is.
            whole_sets: also those over a whole set.
        """
        values: dict[str, float] = {}
        states = {**self.states.get(interval, {}), **self.states.get(KEPT, {})}
        for name, measure in self.measures.items():
            if measure.of_whole_set and not whole_sets:
                continue
            given = states if isinstance(measure, Ordered) else sums
            found = measure.result(given.get(name))
            if found is not None:  # Else a step of research code leaves it out.
                values |= as_numbers(name, found, values)
        if interval == EVAL and whole_sets:
            self._warn_of_unmeasured()
        return values

    def _warn_of_unmeasured(self) -> None:
        """Names the metrics that research code has left out of its steps."""
        left_out = self.measures.keys() - self._measured
        if left_out:
            self._measured |= left_out
            logging.warning(
                "Neither train_step nor eval_step measures the metrics %s. "
                "Return metric_increments(y, y_pred) with the rest.",
                ", ".join(map(repr, sorted(left_out))),
            )


def build_metrics(
    factories: Any,
    *,
    plain: Any = None,
    model: keras.Model,
    own_step: bool = False,
) -> MetricSet:
    """Makes the metrics of a run.

    Args:
        factories: a metric, a function that returns one, the name of either
            a class or a function of `keras.metrics`, a function of targets
            and outputs, or a list or dict of these.
        plain: the same, see `MetricSet`.
        model: the built model.
        own_step: see `MetricSet`.
    """
    # Otherwise the second run in a process would log other names.
    with fresh_names():
        unweighted = keras.tree.map_structure(make_metric, plain)
        made = keras.tree.map_structure(make_metric, factories)
    return MetricSet(made, plain=unweighted, model=model, own_step=own_step)


def _check_takes_weights(name: str, metric: Any, why: str) -> None:
    if not metric.takes_weights:
        raise UserError(
            f"The {why}, which the function of the metric {name!r} does not "
            "take. Give it a parameter sample_weight, which is 0 where an "
            "example or a part of it does not count."
        )


def _mask_weight(weight: Any, mask: tf.Tensor | None) -> Any:
    # As in `compile`: a mask of the output multiplies the weights of its
    # metrics.
    if mask is None:
        return weight
    mask = tf.cast(mask, tf.float32)
    if weight is None:
        return mask
    weight = tf.cast(weight, tf.float32)
    if weight.shape.rank == mask.shape.rank - 1:
        weight = weight[..., tf.newaxis]
    return weight * mask


def check_rows(
    leaves: Sequence[Any], rows: int | tf.Tensor, metric: str
) -> None:
    """Checks that there is one row for each example.

    Raises:
        UserError: it is known while tracing that there is not.
    """
    message = (
        f"The state of the metric {metric!r} does not add up, so replicas must "
        "exchange what it is updated by, example by example. Give it one row "
        "for each example."
    )
    for leaf in leaves:
        known = leaf.shape[0] if leaf.shape.rank else -1
        if known == -1 or (isinstance(rows, int) and known not in (None, rows)):
            raise UserError(message)
        # Where tracing cannot tell, each step checks.
        found = tf.shape(leaf, tf.int64)[0]
        tf.debugging.assert_equal(found, tf.cast(rows, tf.int64), message)
