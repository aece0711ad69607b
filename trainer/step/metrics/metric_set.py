"""The metrics of a run: what a step returns of them, and their results.

A Keras metric updates its variables by reading and writing them, and replicas
that do so at once lose updates. Here a step returns the metric's increments
from its initial state. They are summed over replicas and steps, and the result
is computed from the sum. That is exact for every metric whose state adds up,
as those of Keras do. For any other metric a step returns the arguments of its
update, and its state is carried from step to step
(`trainer.step.metrics.carried`).

One class in one long file: each of its methods must treat summed and carried
states alike, which is seen best side by side.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.context import step_context
from trainer.step.keras.private import fresh_names, is_built, keras_mask
from trainer.step.losses.outputs import Outputs, numbered_names
from trainer.step.metrics.carried import Carried
from trainer.step.metrics.factories import (
    by_shape,
    class_by_shape,
    is_by_shape,
    make_metric,
)
from trainer.step.metrics.measure import Measure, as_numbers, sum_state
from trainer.step.metrics.of_layers import LayerMetrics
from trainer.step.metrics.stateless import (
    Call,
    is_known,
    result,
    updated,
)
from trainer.step.metrics.whole_set import WholeSetMetric
from trainer.step.reductions.slots import (
    Slots,
    check_rows,
    read_slots,
    write_slots,
)
from trainer.step.replica_batch import count_examples, is_weighted, real_rows

METRIC = "metric:"  # The prefix of lists of increments.
VALUES = "values:"  # The prefix of what carried states are updated by.
_MARKS = "_marks"  # Which rows of these values are examples.

Logs = dict[str, Any]


class MetricSet:
    """The metrics of a run.

    Args:
        given: metrics, in a list, or by output; functions of targets and
            outputs and the names of such functions are metrics, too.
        model: the built model, which may have metrics in its layers.
        own_step: whether an overridden `train_step` chooses targets and
            outputs.

    Attributes:
        given: as they were given, but made.
        measures: the metrics, by the name under which they are logged.
        in_layers: those that layers update.
        is_bound: whether it is known which metric is for which output.
        in_pieces: whether a step sees its batch in several pieces.
        is_ready: whether it is known how each is measured.
        stored_trial: what a checkpoint says of which metrics add up.

    Raises:
        UserError: an entry is not a metric.
    """

    def __init__(
        self, given: Any, *, model: keras.Model, own_step: bool = False
    ) -> None:
        self.given = given
        self._names = getattr(model, "output_names", None)
        self._outputs: Outputs | None = None
        self.in_layers = LayerMetrics(model)
        self.measures: dict[str, Measure] = {}
        self.is_ready = self.in_pieces = False
        self.stored_trial: dict[str, bool] = {}
        # What overridden steps leave out: in training, or not.
        self._left_out: dict[bool, set[str]] = {True: set(), False: set()}
        self._told: set[str] = set()
        self._own_step = own_step
        # Names such as "accuracy", by that of the metric that they have become.
        self._by_shape: dict[str, str] = {}
        # Without metrics of outputs there is nothing to bind.
        self.is_bound = not keras.tree.flatten(given)
        if own_step and not any(map(is_by_shape, keras.tree.flatten(given))):
            self._bind_by_key(None, None)
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
        if self._own_step:
            self._bind_by_key(y, y_pred)
            self._add_layers()
            return
        outputs = Outputs(y_pred, self._names)
        groups = outputs.split(self.given, what="metrics")
        targets, predicted = outputs.tensors(y), outputs.tensors(y_pred)
        for i, group in enumerate(groups):
            prefix = "" if len(groups) == 1 else f"{outputs.labels[i]}_"
            for one in keras.tree.flatten(group):
                if one is None:
                    continue
                made = by_shape(one, targets[i], predicted[i])
                self._add(f"{prefix}{made.name}", Measure(made, i))
        self._outputs = outputs
        self._add_layers()
        self.is_bound = True

    @property
    def has_carried(self) -> bool:
        """Whether there are states that are carried from step to step."""
        return any(one.carried for one in self.measures.values())

    @property
    def are_known(self) -> bool:
        """Whether all metrics are Keras' own and need no trial."""
        return all(
            isinstance(one, WholeSetMetric)
            or (
                isinstance(one, keras.Metric)
                and is_known(one)
                and is_built(one)
            )
            for one in keras.tree.flatten(self.given)
            if one is not None
        )

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
        parts = (y, y_pred, sample_weight)
        if self._outputs is not None:
            split = [self._outputs.tensors(part) for part in parts]
        found = {}
        for name, measure in self.measures.items():
            if measure.in_layer:
                continue
            if isinstance(measure.output, int):
                target, predicted, weight = (s[measure.output] for s in split)
            else:
                target, predicted, weight = (
                    _of_key(part, measure.output) for part in parts
                )
                self._check_kind(name, measure, target, predicted)
            self._check_rank(name, measure, predicted)
            if measure.of_whole_set:
                _check_mask(name, measure.metric, keras_mask(predicted))
            weight = _mask_weight(weight, keras_mask(predicted))
            options = {"sample_weight": weight}
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
        found = {}
        for name, made in calls.items():
            measure = self.measures[name]
            if measure.carried is not None:
                found[f"{VALUES}{name}"] = measure.carried.flatten(made)
                continue
            # From the initial state, not from the variables: an update then
            # returns what it adds, whatever came before.
            start = [tf.constant(v) for v in measure.initial]
            after = updated(measure.metric, start, made)
            found[f"{METRIC}{name}"] = [
                b - a for a, b in zip(start, after, strict=True)
            ]
        return found

    def unmeasured(self, logs: Logs, *, training: bool) -> list[str]:
        """Metrics that neither training nor evaluation measures.

        Args:
            logs: what an overridden step returned.
            training: whether it is the training step.

        Returns:
            Their names, once both steps are known; each is named once.
        """
        whole = {name for name, m in self.measures.items() if m.of_whole_set}
        self._left_out[training] = {
            name
            for name, measure in self.measures.items()
            if not measure.in_layer
            and not logs.keys() & {name, f"{METRIC}{name}", f"{VALUES}{name}"}
        }
        # Training never measures a whole set.
        nowhere = (self._left_out[True] | whole) & self._left_out[False]
        found = [n for n in self.measures if n in nowhere - self._told]
        self._told |= nowhere
        return found

    def has_values(self, logs: Logs) -> bool:
        """Whether a step's results have what carried states are updated by."""
        return any(name.startswith(VALUES) for name in logs)

    def check_whole_sets(self, logs: Logs, batch: Any) -> None:
        """Checks that no metric over a whole set leaves weights out.

        Args:
            logs: what a step returns on a replica.
            batch: the replica's piece of the global batch.

        Raises:
            UserError: the data has sample weights that a function ignores.
        """
        for name, measure in self.measures.items():
            metric = measure.metric
            if (
                f"{VALUES}{name}" in logs
                and isinstance(metric, WholeSetMetric)
                and not metric.takes_weights
                and is_weighted(batch)
            ):
                raise UserError(
                    "The data has sample weights, which the function of the "
                    f"metric {name!r} does not take. Give it a parameter "
                    "sample_weight, or evaluate data without weights."
                )

    def without_whole_sets(self, logs: Logs) -> Logs:
        """A training step's results without what only evaluations gather."""
        names = {
            f"{VALUES}{n}" for n, m in self.measures.items() if m.of_whole_set
        }
        return {n: v for n, v in logs.items() if n not in names}

    def as_pieces(self, logs: Logs, batch: Any, slots: Slots) -> Logs:
        """Makes a step's results such that they add up over pieces.

        Args:
            logs: what a step returns on a replica.
            batch: the replica's piece of the global batch.
            slots: where the piece is in the global batch.
        """
        # Increments add up as they are. What carried states are updated by does
        # so once each piece is in a slot of its own.
        values = [name for name in logs if name.startswith(VALUES)]
        real = real_rows(batch)
        if not values or (slots.pieces == 1 and real is None):
            return logs
        # A short piece leaves the end of its slot empty: the marks tell that
        # from examples.
        if real is None:
            real = tf.ones([tf.cast(count_examples(batch), tf.int32)])
        marks = write_slots([real], slots)
        for name in values:
            check_rows(logs[name], real, name.removeprefix(VALUES))
        written = {name: write_slots(logs[name], slots) for name in values}
        return logs | written | {f"{VALUES}{_MARKS}": marks}

    def carry(
        self,
        logs: Logs,
        kept_for: Sequence[str],
        reduce: Callable[[Any], Any],
    ) -> Logs:
        """Updates the carried states by a step, in cross-replica context.

        Args:
            logs: what the step returned.
            kept_for: which of the states.
            reduce: sums over replicas.

        Returns:
            The logs without what was used here.
        """
        values = {n: v for n, v in logs.items() if n.startswith(VALUES)}
        if not values:
            return logs
        whole = reduce(values)
        marks = whole.pop(f"{VALUES}{_MARKS}", None)
        for key, leaves in whole.items():
            measure = self.measures[key.removeprefix(VALUES)]
            carried = measure.carried
            assert carried is not None
            # Noted while tracing: `results` must leave out states that no step
            # updates.
            measure.kept_for.update(kept_for)
            if marks is not None:
                # The examples of all pieces in the order of the global batch,
                # without gaps.
                leaves = read_slots(leaves, marks[0], carried.dtypes)
            carried.update(kept_for, leaves)
        return {n: v for n, v in logs.items() if n not in values}

    def results(
        self,
        sums: dict[str, list[np.ndarray]],
        kept_for: str,
        *,
        whole_sets: bool = True,
    ) -> dict[str, float]:
        """Computes each metric from its state.

        Args:
            sums: metric name to the increments summed over a whole interval.
            kept_for: which of the carried states.
            whole_sets: also those over a whole set.
        """
        values: dict[str, float] = {}
        for name, measure in self.measures.items():
            if measure.of_whole_set and not whole_sets:
                continue
            if measure.carried is not None:
                if kept_for not in measure.kept_for:
                    continue  # An overridden train_step does not return it.
                found = measure.carried.result(kept_for)
            elif name in sums:
                state = sum_state(measure.initial, sums[name])
                found = result(measure.metric, state)
            else:
                continue
            values |= as_numbers(name, found, values)
        return values

    def reset(self, kept_for: str) -> None:
        """Sets carried states back to what they were before any update."""
        for measure in self.measures.values():
            if measure.carried is not None:
                measure.carried.reset(kept_for)

    def states(self, kept_for: str) -> dict[str, list[np.ndarray]]:
        """The carried states, for a checkpoint."""
        return {
            name: measure.carried.state(kept_for)
            for name, measure in self.measures.items()
            if isinstance(measure.carried, Carried)
        }

    def load(
        self,
        name: str,
        arrays: Sequence[np.ndarray],
        *,
        kept_for: str,
        is_sum: bool,
    ) -> list[np.ndarray] | None:
        """Restores a metric's state from a checkpoint.

        It may have been stored in the other of the two forms: a sum of
        increments, or a state that was carried. The strategies of two
        attempts may differ, and with them the form.

        Args:
            name: the metric's.
            arrays: its state, or the sums of its increments, with an axis for
                replicas in front.
            kept_for: which of the carried states.
            is_sum: which of the two forms it is.

        Returns:
            The sums of its increments by replica, if it adds up.
        """
        measure = self.measures[name]
        if not isinstance(measure.carried, Carried):
            if is_sum:
                return list(arrays)
            # A state is the initial one plus the sum; [None] adds the axis of
            # replicas.
            pairs = zip(arrays, measure.initial, strict=True)
            return [(np.asarray(a, np.float64) - b)[None] for a, b in pairs]
        if is_sum:
            # [replicas, ...] -> the sum over all replicas.
            whole = [np.sum(array, axis=0) for array in arrays]
            arrays = sum_state(measure.initial, whole)
        measure.carried.load(kept_for, arrays)
        return None

    @property
    def carried_variables(self) -> list[tf.Variable]:
        """What holds the states that are carried from step to step."""
        return [
            variable
            for measure in self.measures.values()
            if measure.carried is not None
            for variable in measure.carried.variables
        ]

    def renamed(
        self, stored: dict[str, list[np.ndarray]]
    ) -> dict[str, list[np.ndarray]]:
        """Stored states under the names that metrics have now.

        Keras numbers unnamed metrics within a process, so the same metrics may
        have other names now: then they are matched by order and shape.

        Args:
            stored: by a prefix that ends with a colon, and a name.
        """
        names = [key.partition(":")[2] for key in stored]
        left = [name for name in self.measures if name not in names]
        found = {}
        for key, arrays in stored.items():
            prefix, _, name = key.partition(":")
            # Sums have an axis of replicas in front, carried states do not.
            by_replica = key.startswith(METRIC)
            shapes = [np.shape(a)[by_replica:] for a in arrays]
            if name not in self.measures:
                fitting = [
                    one
                    for one in left
                    if [v.shape for v in self.measures[one].initial] == shapes
                ]
                if not fitting:
                    continue
                name = fitting[0]
                left.remove(name)
            elif [v.shape for v in self.measures[name].initial] != shapes:
                continue
            found[f"{prefix}:{name}"] = arrays
        return found

    def trial(self) -> dict[str, bool]:
        """The metrics that were tried, and whether they add up."""
        return {
            name: measure.adds_up
            for name, measure in self.measures.items()
            if measure.adds_up is not None and not measure.of_whole_set
        }

    def _check_rank(self, name: str, measure: Measure, predicted: Any) -> None:
        """Refuses rank 1 outputs, of which Keras takes one mean per batch."""
        rank = getattr(getattr(predicted, "shape", None), "rank", None)
        if measure.adds_up is None and self.in_pieces and rank == 1:
            raise UserError(
                f"The metric {name!r} gets outputs of shape [batch], of which "
                "it takes one mean per batch. Give it [batch, 1]."
            )

    def _check_kind(
        self, name: str, measure: Measure, target: Any, predicted: Any
    ) -> None:
        """Refuses what another metric is meant for than was made."""
        given = self._by_shape.get(name)
        if given is None:
            return
        made = type(measure.metric).__name__
        meant = class_by_shape(given, target, predicted).__name__
        if made != meant:
            raise UserError(
                f"Metric {given!r} means {made} for the model's outputs and "
                f"targets, but {meant} for what the step passes to "
                f"metric_increments. Name the class exactly, such as {meant}."
            )

    def _bind_by_key(self, y: Any, y_pred: Any) -> None:
        by_key = (
            self.given if isinstance(self.given, dict) else {"": self.given}
        )
        for key, group in by_key.items():
            for one in keras.tree.flatten(group):
                made = by_shape(one, _of_key(y, key), _of_key(y_pred, key))
                name = f"{key}_{made.name}" if key else made.name
                self._add(name, Measure(made, key))
                if is_by_shape(one):
                    self._by_shape[name] = one
        self.is_bound = True

    def _add_layers(self) -> None:
        for metric in self.in_layers.all:
            self._add(metric.name, Measure(metric, in_layer=True))

    def _add(self, name: str, measure: Measure) -> None:
        # As in Keras: two outputs of one layer, or two metrics of an output,
        # may have one name.
        self.measures[numbered_names([*self.measures, name])[-1]] = measure


def _of_key(part: Any, key: int | str | None) -> Any:
    """What an overridden step passes for an output."""
    return part.get(key) if key and isinstance(part, dict) else part


def build_metrics(
    factories: Any, *, model: keras.Model, own_step: bool = False
) -> MetricSet:
    """Makes the metrics of a run.

    Args:
        factories: a metric, a function that returns one, the name of either
            a class or a function of `keras.metrics`, a function of targets
            and outputs, or a list or dict of these.
        model: the built model.
        own_step: see `MetricSet`.
    """
    # Otherwise the second run in a process would log other names.
    with fresh_names():
        made = keras.tree.map_structure(make_metric, factories)
    return MetricSet(made, model=model, own_step=own_step)


def _check_mask(name: str, metric: Any, mask: tf.Tensor | None) -> None:
    if mask is not None and not metric.takes_weights:
        raise UserError(
            f"The outputs have a mask, which the function of the metric "
            f"{name!r} does not take. Give it a parameter sample_weight, which "
            "is 0 where the mask leaves something out."
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
