"""The metrics of a run: what a step returns of them, and their results.

In training metrics are sums: those of Keras that are known to be, those that
say so (`additive = True`, or `trainer.additive`), and those that are found to
be. Any other kind is carried from step to step where every step sees its global
batch whole, and refused where a batch is cut, by replicas or micro-batches. In
an evaluation replicas exchange what such a metric is updated by, so that it is
exact under every strategy. See `trainer.step.metrics.states`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.context import step_context
from trainer.step.keras.private import fresh_names, keras_mask
from trainer.step.losses.outputs import Outputs, numbered_names
from trainer.step.metrics.factories import by_shape, is_by_shape, make_metric
from trainer.step.metrics.of_layers import LayerMetrics
from trainer.step.metrics.states import (
    METRIC,
    VALUES,
    Call,
    Carried,
    Summed,
    as_numbers,
    initial_state,
)
from trainer.step.metrics.whole_set import WholeSet, WholeSetMetric
from trainer.step.reductions.slots import (
    Slots,
    check_rows,
    read_slots,
    write_slots,
)
from trainer.step.replica_batch import count_examples, is_weighted, real_rows

_MARKS = f"{VALUES}_marks"  # Which rows of such values are examples.

Logs = dict[str, Any]


@dataclasses.dataclass
class Measure:
    """One metric of a run.

    Attributes:
        metric: what is measured.
        output: the position of its output, or the key that an overridden step
            has for it; `None` where a layer updates it.
        in_layer: whether a layer does.
        adds_up: whether its state is a sum; `None` where that is known without
            a trial.
        initial: its state before any update.
        state: how it is kept.
    """

    metric: keras.Metric
    output: int | str | None = None
    in_layer: bool = False
    adds_up: bool | None = None
    initial: list[np.ndarray] = dataclasses.field(init=False)
    state: Summed | Carried | WholeSet = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Takes the state that the variables have as the initial one."""
        self.initial = initial_state(self.metric)
        if isinstance(self.metric, WholeSetMetric):
            self.state = WholeSet(self.metric)
        else:
            self.state = Summed(self.metric, self.initial)

    @property
    def of_whole_set(self) -> bool:
        """Whether it is measured in evaluations only, over all examples."""
        return isinstance(self.state, WholeSet)

    def decide(self, *, adds_up: bool) -> None:
        """Says how its state is kept, once that is known."""
        self.adds_up = adds_up
        if not adds_up:
            self.state = Carried(self.metric, self.initial)

    def fits(self, key: str, arrays: Sequence[np.ndarray]) -> bool:
        """Whether stored arrays may be its state."""
        by_replica = key.startswith(METRIC)
        shapes = [np.shape(array)[by_replica:] for array in arrays]
        return by_replica is isinstance(self.state, Summed) and (
            [one.shape for one in self.initial] == shapes
        )


class MetricSet:
    """The metrics of a run.

    Args:
        given: metrics, in a list, or by output, and names that depend on the
            shapes of an output.
        model: the built model, which may have metrics in its layers.
        own_step: whether an overridden `train_step` chooses targets and
            outputs.

    Attributes:
        given: as they were given.
        measures: the metrics, by the name under which they are logged.
        in_layers: those that layers update.
        is_bound: whether it is known which metric is for which output.
        in_pieces: whether a training step sees its batch in several pieces.
        is_ready: whether it is known how each is measured.
        judged: the metrics that were tried, and whether they add up. A
            checkpoint holds it: another answer in a resumed run would change
            how sums are rounded.

    Raises:
        UserError: an overridden step cannot have such a metric.
    """

    def __init__(
        self, given: Any, *, model: keras.Model, own_step: bool = False
    ) -> None:
        self.given = given
        self.in_layers = LayerMetrics(model)
        self.measures: dict[str, Measure] = {}
        self.judged: dict[str, bool] = {}
        self.is_ready = self.in_pieces = False
        self._model = model
        # What overridden steps leave out: in training, or not.
        self._left_out: dict[bool, set[str]] = {True: set(), False: set()}
        # Without metrics of outputs there is nothing to bind.
        self.is_bound = own_step or not keras.tree.flatten(given)
        if own_step:
            self._bind_by_key()
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
        groups = outputs.split(self.given, what="metrics")
        targets, predicted = outputs.tensors(y), keras.tree.flatten(y_pred)
        for i, group in enumerate(groups):
            prefix = f"{outputs.labels[i]}_" if len(groups) > 1 else ""
            for one in keras.tree.flatten(group):
                if one is not None:
                    made = by_shape(one, targets[i], predicted[i])
                    self._add(f"{prefix}{made.name}", Measure(made, i))
        self._add_layers()
        self.is_bound = True

    def _bind_by_key(self) -> None:
        by_key = (
            self.given if isinstance(self.given, dict) else {"": self.given}
        )
        for key, group in by_key.items():
            for one in keras.tree.flatten(group):
                if is_by_shape(one):
                    raise UserError(
                        f"Metric {one!r} depends on the shapes of an output, "
                        "and an overridden train_step chooses what it is "
                        "given. Name the class exactly, such as "
                        "SparseCategoricalAccuracy."
                    )
                name = f"{key}_{one.name}" if key else one.name
                self._add(name, Measure(one, key))

    def _add_layers(self) -> None:
        for metric in self.in_layers.all:
            self._add(metric.name, Measure(metric, in_layer=True))

    def _add(self, name: str, measure: Measure) -> None:
        # As in Keras: two outputs of one layer, or two metrics of an output,
        # may have one name.
        self.measures[numbered_names([*self.measures, name])[-1]] = measure

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
        parts, found = (y, y_pred, sample_weight), {}
        outputs = Outputs.of(self._model, y_pred)
        for name, measure in self.measures.items():
            if measure.in_layer:
                continue
            key = measure.output
            target, predicted, weight = (
                outputs.tensors(part)[key]
                if isinstance(key, int)
                else part.get(key)
                if key and isinstance(part, dict)
                else part
                for part in parts
            )
            rank = getattr(getattr(predicted, "shape", None), "rank", None)
            if measure.adds_up is None and self.in_pieces and rank == 1:
                raise UserError(
                    f"The metric {name!r} gets outputs of shape [batch], of "
                    "which it takes one mean per batch. Give it [batch, 1]."
                )
            mask = keras_mask(predicted)
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
        states = {name: self.measures[name].state for name in calls}
        return {
            f"{state.prefix}{name}": state.of(calls[name])
            for name, state in states.items()
        }

    def complete(
        self, logs: Logs, batch: Any, slots: Callable[[], Slots] | None
    ) -> Logs:
        """Makes a step's results such that they add up over replicas.

        Args:
            logs: what a step returns on a replica.
            batch: the replica's piece of the global batch.
            slots: where the piece is in a global batch that is evaluated;
                `None` in training.

        Raises:
            UserError: the data has sample weights that a function of a whole
                set ignores.
        """
        if slots is None:
            # What only evaluations gather. What is left is of a whole batch.
            return {
                key: value
                for key, value in logs.items()
                if not self._is_of_whole_set(key)
            }
        values = [key for key in logs if key.startswith(VALUES)]
        for key in filter(self._is_of_whole_set, values):
            name = key.removeprefix(VALUES)
            if is_weighted(batch):
                metric = self.measures[name].metric
                _check_takes_weights(name, metric, "data has sample weights")
        real = real_rows(batch)
        # Increments add up as they are. What other states are updated by does
        # so once each piece is in a slot of its own.
        if not values or ((at := slots()).pieces == 1 and real is None):
            return logs
        # A short piece leaves the end of its slot empty: the marks tell that
        # from examples.
        if real is None:
            real = tf.ones([tf.cast(count_examples(batch), tf.int32)])
        for key in values:
            check_rows(logs[key], real, key.removeprefix(VALUES))
        written = {key: write_slots(logs[key], at) for key in values}
        return logs | written | {_MARKS: write_slots([real], at)}

    def _is_of_whole_set(self, key: str) -> bool:
        measure = self.measures.get(key.removeprefix(VALUES))
        return measure is not None and measure.of_whole_set

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
        marks = whole.pop(_MARKS, None)
        for key, leaves in whole.items():
            state = self.measures[key.removeprefix(VALUES)].state
            assert not isinstance(state, Summed)
            if marks is not None:
                # The examples of all pieces in the order of the global batch,
                # without gaps.
                leaves = read_slots(leaves, marks[0], state.dtypes)
            state.update(kept_for, leaves)
        return {n: v for n, v in logs.items() if n not in values}

    def unmeasured(self, logs: Logs, *, training: bool) -> list[str]:
        """Metrics that neither training nor evaluation measures.

        Args:
            logs: what an overridden step returned.
            training: whether it is the training step.

        Returns:
            Their names, once both steps are known; each is named once.
        """
        measured = {key.rpartition(":")[2] for key in logs}
        before = self._left_out[True] & self._left_out[False]
        self._left_out[training] = {
            name
            for name, measure in self.measures.items()
            if not measure.in_layer and name not in measured
        }
        if not training:  # Training never measures a whole set.
            self._left_out[True] |= {
                name for name, m in self.measures.items() if m.of_whole_set
            } & self._left_out[False]
        return sorted(self._left_out[True] & self._left_out[False] - before)

    # Between steps.

    @property
    def _kept_here(self) -> dict[str, Carried | WholeSet]:
        """The states that are not sums, by the metric's name."""
        return {
            name: measure.state
            for name, measure in self.measures.items()
            if not isinstance(measure.state, Summed)
        }

    @property
    def has_carried(self) -> bool:
        """Whether there are states that are not sums."""
        return bool(self._kept_here)

    @property
    def carried_variables(self) -> list[tf.Variable]:
        """What holds the states that are carried from step to step."""
        return [v for one in self._kept_here.values() for v in one.variables]

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
            found = measure.state.result(kept_for, sums.get(name))
            if found is not None:  # Else a step of research code leaves it out.
                values |= as_numbers(name, found, values)
        return values

    def reset(self, kept_for: str) -> None:
        """Sets carried states back to what they were before any update."""
        for state in self._kept_here.values():
            state.reset(kept_for)

    def states(self, kept_for: str) -> dict[str, list[np.ndarray]]:
        """The carried states, for a checkpoint."""
        return {
            name: state.state(kept_for)
            for name, state in self._kept_here.items()
            if isinstance(state, Carried)
        }

    def load(
        self, stored: Mapping[str, list[np.ndarray]], kept_for: str
    ) -> dict[str, list[np.ndarray]]:
        """Restores the carried states of a checkpoint.

        Keras numbers unnamed metrics within a process, so the same metrics may
        have other names now: then they are matched by order and shape.

        Args:
            stored: states and sums, by a prefix that ends with a colon, and
                the metric's name.
            kept_for: which of the carried states.

        Returns:
            The sums, under the names that they have now.
        """
        names = [key.partition(":")[2] for key in stored]
        left = [name for name in self.measures if name not in names]
        sums = {}
        for key, arrays in stored.items():
            name = key.partition(":")[2]
            candidates = [name] if name in self.measures else left
            fitting = [
                one
                for one in candidates
                if self.measures[one].fits(key, arrays)
            ]
            if not fitting:
                continue
            if fitting[0] in left:
                left.remove(fitting[0])
            state = self.measures[fitting[0]].state
            if isinstance(state, Carried):
                state.load(kept_for, arrays)
            else:
                sums[f"{METRIC}{fitting[0]}"] = arrays
        return sums


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
