"""Variables that Keras makes, and the values that layers assign to them.

Each replica computes the new value from its own part of the batch. The
variable's `aggregation`, as in `add_weight(aggregation="sum")`, says how the
replicas' values become one:

- `"mean"`, the default for floating-point numbers: the mean of the replicas'
  values, weighed by their examples. A mean over the batch thus becomes one
  over the global batch.
- `"sum"`: what each replica adds to the old value is added up. Where this is
  an average over time, `n = d * n + sum`, it is what they add to `d * n`; so it
  is by default, if a trial finds it (`trainer.step.probe_sums`).
- `"only_first_replica"`, the default for other numbers: the first one's value.

A replica without examples changes nothing.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.step.context import step_context
from trainer.step.keras.private import native
from trainer.step.replica_batch import ReplicaBatch

_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_MEAN = tf.VariableAggregation.MEAN
_SUM = tf.VariableAggregation.SUM


def portable_variables(
    next_creator: Callable[..., tf.Variable], **kwargs: Any
) -> tf.Variable:
    """A `tf.variable_creator_scope` function for variables made by Keras.

    Keras sets no aggregation. Replicas' copies of moving statistics would then
    drift apart, and central storage refuses to assign such variables.
    Floating-point variables take the mean of what the replicas assign, others
    the first replica's value. Metric variables, made to be read as a sum over
    replicas, become plain ones: here they hold only sums already reduced, so
    reading or saving them needs no collective.
    """
    if kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE):
        dtype = kwargs.get("dtype")
        floating = dtype is None or tf.as_dtype(dtype).is_floating
        kwargs["aggregation"] = _MEAN if floating else _FIRST
    on_read = tf.VariableSynchronization.ON_READ
    if kwargs.get("synchronization") == on_read:
        kwargs["synchronization"] = tf.VariableSynchronization.AUTO
    return next_creator(**kwargs)


class NotedVariables:
    """A `tf.variable_creator_scope` function that keeps what was made.

    Attributes:
        variables: all of them.
        decided: the ids of those for which an aggregation was given; a trial
            need not find out whether the default is right for them.
        decays: by id, the factors of those that keep sums over time: what an
            old value is multiplied by, before replicas' sums are added.
    """

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []
        self.decided: set[int] = set()
        self.decays: dict[int, float] = {}

    def __call__(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        """Makes a variable."""
        given = kwargs.get("aggregation")
        made = next_creator(**kwargs)
        self.variables.append(made)
        if given not in (None, tf.VariableAggregation.NONE):
            self.decided.add(id(made))
        return made


def take_over_assignments(model: keras.Model, noted: NotedVariables) -> None:
    """Weighs what layers assign to variables by their replica's examples.

    Args:
        model: whose variables these are.
        noted: what its layers made, variables that Keras does not track too.
    """
    tracked = map(native, model.variables)
    for variable in {id(v): v for v in (*noted.variables, *tracked)}.values():
        if not (variable.dtype.is_floating or variable.dtype.is_integer):
            continue
        # Replaced on this object: Keras calls them by name.
        for name in ("assign", "assign_add", "assign_sub"):
            setattr(variable, name, _taken_over(variable, name, noted))


def _taken_over(
    variable: tf.Variable, name: str, noted: NotedVariables
) -> Callable[..., Any]:
    """An assignment whose value is weighed by the replica's examples."""
    own, key = getattr(variable, name), id(variable)

    def assign(value: Any, *args: Any, **kwargs: Any) -> Any:
        here, probe = step_context.batch, step_context.probe
        if step_context.recomputing:  # The first pass has assigned.
            return variable.read_value()
        in_replica = not tf.distribute.in_cross_replica_context()
        if here is None or not in_replica:
            return own(value, *args, **kwargs)
        value = tf.convert_to_tensor(value, variable.dtype)
        delta = None if name == "assign" else value
        if name == "assign_sub":
            delta = -value
        if probe is not None:  # Which assigns nothing.
            if delta is not None:
                value = probe.value_of(variable) + delta
            is_decided = key in noted.decided
            probe.take_assignment(variable, value, decided=is_decided)
            return value
        decay = noted.decays.get(key)
        if delta is not None and decay is not None:
            return variable.assign(variable.read_value() + delta)
        if delta is not None:
            return own(_delta_of(variable, value, here), *args, **kwargs)
        return own(_value_of(variable, value, here, decay), *args, **kwargs)

    return assign


def _value_of(
    variable: Any, value: tf.Tensor, here: ReplicaBatch, decay: float | None
) -> tf.Tensor:
    """What a replica contributes to the reduction, so as to assign a value."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        if not here.may_be_empty:
            return value
        return tf.where(here.is_empty, variable.read_value(), value)
    is_sum = variable.aggregation == _SUM
    if is_sum or decay is not None:
        old = variable.read_value()
        kept = old if decay is None else old * tf.cast(decay, old.dtype)
        if decay is not None and here.may_be_empty:
            kept = tf.where(tf.equal(here.all_examples, 0.0), old, kept)
        added = here.or_zeros(value - kept)
        if not is_sum:  # Of which the strategy takes the plain mean.
            return kept + added * context.num_replicas_in_sync
        # The reduction adds up what replicas assign: the first one contributes
        # the old value, and each one its change.
        first = tf.equal(context.replica_id_in_sync_group, 0)
        return tf.where(first, kept, tf.zeros_like(old)) + added
    # The strategy takes the plain mean: with weights that are 1 on average, it
    # becomes the weighed one.
    if variable.aggregation == _MEAN and not here.is_even:
        value = here.or_zeros(_weighted(value, here))
    if not here.may_be_empty:
        return value
    # A micro-batch may be empty on every replica.
    all_empty = tf.equal(here.all_examples, 0.0)
    return tf.where(all_empty, variable.read_value(), value)


def _delta_of(variable: Any, delta: tf.Tensor, here: ReplicaBatch) -> tf.Tensor:
    """The same for what is added or subtracted."""
    context = tf.distribute.get_replica_context()
    several = context.num_replicas_in_sync > 1
    if several and variable.aggregation == _MEAN and not here.is_even:
        delta = _weighted(delta, here)
    return here.or_zeros(delta)


def _weighted(value: tf.Tensor, here: ReplicaBatch) -> tf.Tensor:
    # Most ratios of example counts are not exact in 16 bits.
    wide = tf.cast(value, tf.float64 if value.dtype.size > 4 else tf.float32)
    return tf.cast(wide * tf.cast(here.weight, wide.dtype), value.dtype)
