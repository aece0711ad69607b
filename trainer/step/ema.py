"""An exponential moving average of the weights (Polyak averaging)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class MovingAverage:
    """Averages of variables: `average = m * average + (1 - m) * variable`.

    Args:
        variables: the model's trainable `tf.Variable`s; the averages start
            at their values. Create the object in the strategy's scope.
        momentum: m, in (0, 1).
        strategy: the strategy that made the variables.

    Attributes:
        is_stale: whether something other than a step has written a weight:
            the averages are of other weights then, and begin again.
    """

    def __init__(
        self,
        variables: list[tf.Variable],
        *,
        momentum: float,
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._momentum = momentum
        self._strategy = strategy
        self._watched = variables
        self.is_stale = False
        for variable in variables:
            for name in ("assign", "assign_add", "assign_sub"):
                setattr(variable, name, self._noting(getattr(variable, name)))
        self.variables = [
            tf.Variable(v.read_value(), trainable=False, name="ema")
            for v in variables
        ]

    def _noting(self, assign: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            # What is traced is of a step.
            self.is_stale |= tf.executing_eagerly()
            return assign(*args, **kwargs)

        return noted

    def follow(self) -> None:
        """Starts again if the weights are others; before anything is read."""
        if self.is_stale:
            self.restart()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """What writes weights while it is open are steps."""
        self.follow()
        yield
        self.is_stale = False

    def restart(self) -> None:
        """Starts the averages again at the present weights."""
        for average, variable in zip(
            self.variables, self._watched, strict=True
        ):
            average.assign(variable.read_value())
        self.is_stale = False

    def update(self) -> None:
        """Moves every average one step, in cross-replica context."""
        # On the replicas: they hold the weights, and the host may not.
        self._strategy.run(self._update_on_replica)

    def _update_on_replica(self) -> None:
        # extended.update needs cross-replica context: merge_call is where
        # all replicas meet.
        tf.distribute.get_replica_context().merge_call(self._update_all)

    def _update_all(self, strategy: tf.distribute.Strategy) -> None:
        def move(average: tf.Variable, value: tf.Tensor) -> None:
            step = (average - value) * tf.cast(1 - self._momentum, value.dtype)
            average.assign_sub(step)

        for average, variable in zip(
            self.variables, self._watched, strict=True
        ):
            # group=False: merge_call drops what this returns, and automatic
            # control dependencies order the updates.
            strategy.extended.update(
                average, move, args=(variable,), group=False
            )

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Puts the averages into the model for as long as it is open.

        The weights are copied, not computed back, so that they return bit by
        bit.
        """
        self.follow()
        weights = [tf.identity(v) for v in self._watched]
        try:
            self._copy_in(self.variables)
            yield
        finally:
            self._copy_in(weights)
            self.is_stale = False

    def _copy_in(self, values: list[tf.Variable] | list[tf.Tensor]) -> None:
        for variable, value in zip(self._watched, values, strict=True):
            variable.assign(tf.convert_to_tensor(value))
