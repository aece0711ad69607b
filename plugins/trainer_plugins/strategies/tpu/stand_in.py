"""A strategy of one traced replica that stands for all chips of a topology.

TPUStrategy traces a step once, too, and every core runs that program. The same
is done here in the same places of a replica: a reduction is one operation that
XLA turns into an all-reduce, the number of a replica is known only on the chip,
and a value that a replica assigns to a variable is first reduced as the
variable's `aggregation` says. Its graphs can be lowered, and must not be run.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer import UserError
from trainer_plugins.strategies.tensorflow_private import (
    OneDeviceExtended,
    xla_all_reduce,
    xla_replica_id,
)
from trainer_plugins.strategies.tpu.refusals import described

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


class TopologyStrategy(tf.distribute.Strategy):
    """Stands for `tf.distribute.TPUStrategy` while programs are lowered.

    Args:
        replicas: how many chips the topology has.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__(_Extended(self, replicas))


class _Extended(OneDeviceExtended):
    def __init__(self, strategy: tf.distribute.Strategy, replicas: int) -> None:
        super().__init__(strategy, "/cpu:0")
        self._replicas = replicas
        # One group of all replicas, as CrossReplicaSum has without a group.
        self._group = [list(range(replicas))]

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        strategy = self._container_strategy()
        number = xla_replica_id()
        with (
            tf.device(self._device),
            tf.distribute.ReplicaContext(
                strategy, replica_id_in_sync_group=number
            ),
        ):
            return fn(*args, **kwargs)

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any
    ) -> Any:
        del destinations, options
        # As TPUStrategy does: first the factor, then one sum.
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            value *= tf.cast(1.0 / self._replicas, value.dtype)
        if value.dtype == tf.float64:
            # A TPU emulates it; the operation below does not take it.
            made = value.op
            while made.type in ("Identity", "Mul", "Cast", "Reshape"):
                made = made.inputs[0].op
            raise UserError(
                f"In the step, {described(made.name)} is float64 and is "
                "summed over replicas, which cannot be compiled here, and is "
                "slow on a TPU. Use float32."
            )
        return xla_all_reduce(
            input=value,
            group_assignment=tf.constant(self._group),
            reduce_op="Add",
            mode="CrossReplica",
        )

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> tf.Variable:
        made = super()._create_variable(next_creator, **kwargs)
        aggregation = kwargs.get("aggregation")
        if aggregation in (
            tf.VariableAggregation.MEAN,
            tf.VariableAggregation.SUM,
        ):
            op = tf.distribute.ReduceOp(aggregation.name)
            for name in _ASSIGNMENTS:
                setattr(made, name, self._reduced(getattr(made, name), op))
        return made

    def _reduced(self, assign: Callable[..., Any], op: Any) -> Any:
        """An assignment of the reduced value of all replicas."""

        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            context = tf.distribute.get_replica_context()
            if context and context.strategy is self._container_strategy():
                value = tf.convert_to_tensor(value)
                value = self._reduce_to(op, value, None, None)
            return assign(value, *args, **kwargs)

        return call
