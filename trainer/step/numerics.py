"""`check_numerics`: training ends at the first value that is not finite."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.forms import Form
from trainer.step.spec import StepSpec


def checked(step: Callable[[Any], Any], spec: StepSpec) -> Callable[[Any], Any]:
    """Lets each operation of a step check what it has computed.

    Args:
        step: see `trainer.strategy.graph_loop.Step`.
        spec: what the step was made of.

    Raises:
        UserError: operations cannot check themselves, or would find what is
            no fault.
    """
    why = None
    if spec.form is not Form.GRAPH:
        why = "XLA makes others of the operations: set jit_compile to 'graph'"
    elif spec.options.loops_on_replicas:
        why = (
            f"the strategy {spec.plugin.name!r} compiles every step: take "
            "another one, such as 'default'"
        )
    elif spec.parts.loss_scale is not None:
        why = (
            "the loss scale of mixed_float16 lets gradients overflow on "
            "purpose: take mixed_bfloat16 or float32"
        )
    if why is not None:
        raise UserError(f"check_numerics: {why}.")

    @functools.wraps(step)
    def traced(iterator: Any) -> Any:
        # While tracing: it holds for the operations that are made then, in
        # this thread and in those of replicas that it starts.
        tf.debugging.enable_check_numerics()
        try:
            return step(iterator)
        finally:
            tf.debugging.disable_check_numerics()

    return traced
