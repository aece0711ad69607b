"""The guard: finds steps whose loss or gradient is not finite, or explodes.

The check is part of the step, before the update: the reduced gradients and
the global loss are at hand there, and a bad step leaves the weights alone. The
result is kept in variables, which the host reads once per host loop, not once
per step.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from trainer.runtime.graph import only_if
from trainer.values.annotations import Finite, Positive
from trainer.values.configurable import ShowsArguments, configurable


class Measured(NamedTuple):
    """The values that the guard checks in a step; equal on every replica.

    Attributes:
        loss: float32 scalar, the loss of the global batch.
        gradient_norm: float32 scalar, the global norm of its gradient.
    """

    loss: tf.Tensor
    gradient_norm: tf.Tensor


class Fault(NamedTuple):
    """The first bad step of a host loop.

    Attributes:
        step: the optimizer steps that were done before it.
        reason: such as `"loss is nan"`.
        loss: the loss of its global batch.
        gradient_norm: the global norm of its gradient.
    """

    step: int
    reason: str
    loss: float
    gradient_norm: float


@configurable(module="trainer")
class Guard(ShowsArguments):
    """Defines divergence, and what happens then.

    A loss or a gradient that is not finite always counts as divergence.
    Each step is checked before its update, and a bad step makes none. The host
    learns of it at the end of its loop, before anything else sees or saves the
    result.

    A Trainer that overrides `train_step` cannot have a guard: its update could
    not be held back.

    Under `mixed_float16` a gradient that is not finite is not a fault while
    the loss scale can still be lowered.

    Args:
        action: `"stop"` ends the run with an error, `"roll_back"` continues
            from the newest checkpoint without the batch at fault.
        max_loss: a loss greater than this is a fault.
        max_gradient_norm: a gradient norm greater than this, before clipping,
            is a fault.
        max_rollbacks: how often a run, over all its attempts, may roll back.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        action: Literal["stop", "roll_back"] = "stop",
        *,
        max_loss: Finite | None = None,
        max_gradient_norm: Annotated[float, Gt(0), Le(1e38)] | None = None,
        max_rollbacks: Positive = 3,
    ) -> None:
        self.rolls_back = action == "roll_back"
        self.max_loss = max_loss
        self.max_gradient_norm = max_gradient_norm
        self.max_rollbacks = max_rollbacks

    def reason(self, loss: float, norm: float) -> str:
        """Returns what is wrong with a bad step."""
        if not math.isfinite(loss):
            return f"loss is {loss}"
        # In float32, as in the graph: a limit that float32 rounds must be
        # exceeded here if it was exceeded there.
        if self.max_loss is not None and loss > np.float32(self.max_loss):
            return f"loss {loss:g} is above max_loss = {self.max_loss:g}"
        if not math.isfinite(norm):
            return f"gradient norm is {norm}"
        return (
            f"gradient norm {norm:g} is above max_gradient_norm = "
            f"{self.max_gradient_norm:g}"
        )


class GuardState:
    """A guard's part in the step, and its variables.

    Create it in the strategy's scope.

    Args:
        guard: what counts as a fault.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._fault_step = _variable(-1, tf.int64, "guard_fault_step")
        self._fault = _variable([0.0, 0.0], tf.float32, "guard_fault")
        self._newest = _variable(0.0, tf.float32, "guard_newest_norm")

    def apply_if_sound(
        self,
        measured: Measured,
        *,
        step: tf.Tensor,
        apply: Callable[[], None],
        overflowed: tf.Tensor | bool = False,
    ) -> tf.Tensor:
        """Applies a step's update, or notes the step as bad.

        Call it while tracing, where the update may be in a condition.

        Args:
            measured: what the guard looks at.
            step: the optimizer steps that were done before it.
            apply: makes the update.
            overflowed: whether the gradient only shows that the loss scale
                is too large; a boolean scalar.

        Returns:
            Whether it was applied, a boolean scalar.
        """
        loss, norm = measured
        self._newest.assign(norm)
        # A loss of minus infinity is below any limit, so that is not enough.
        loss_is_sound = tf.math.is_finite(loss) & (
            loss <= _at_most(self._guard.max_loss)
        )
        # False for a norm of NaN, too.
        sound = loss_is_sound & (
            norm <= _at_most(self._guard.max_gradient_norm)
        )

        def stop() -> None:
            # A gradient that overflows while the loss is sound is the loss
            # scale's business: the step is left out, the scale is halved, and
            # nothing is noted.
            is_fault = ~(loss_is_sound & overflowed)
            only_if(is_fault, lambda: self._note([loss, norm], step))

        only_if(sound, apply, stop)
        return sound

    def fault(self) -> Fault | None:
        """The first bad step since `forget`; waits for the device."""
        step = int(self._fault_step.numpy())
        if step < 0:
            return None
        loss, norm = (float(value) for value in self._fault.numpy())
        return Fault(step, self._guard.reason(loss, norm), loss, norm)

    def newest_norm(self) -> float:
        """The norm of the newest step's gradient; waits for the device."""
        return float(self._newest.numpy())

    def forget(self) -> None:
        """Waits for the next fault."""
        self._fault_step.assign(-1)

    def _note(self, fault: list[tf.Tensor], step: tf.Tensor) -> None:
        """Keeps the first fault: later ones may be its consequences."""
        before, noted = self._fault_step.read_value(), self._fault.read_value()
        self._fault.assign(tf.where(before < 0, tf.stack(fault), noted))
        self._fault_step.assign(tf.where(before < 0, step, before))


def _at_most(limit: float | None) -> tf.Tensor:
    """A float32 limit that infinity always exceeds."""
    largest = tf.float32.max
    most = largest if limit is None else min(limit, largest)
    return tf.constant(most, tf.float32)


def _variable(value: object, dtype: tf.DType, name: str) -> tf.Variable:
    """A variable that all replicas set to the same value."""
    # Equal on all replicas, so no reduction is needed. The default, NONE, would
    # not allow an assignment on replicas.
    return tf.Variable(
        value,
        dtype=dtype,
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
