"""Creates Keras' variables so that they work under every strategy."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


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
    aggregation = tf.VariableAggregation
    if kwargs.get("aggregation") in (None, aggregation.NONE):
        dtype = kwargs.get("dtype")
        floating = dtype is None or tf.as_dtype(dtype).is_floating
        kwargs["aggregation"] = (
            aggregation.MEAN if floating else aggregation.ONLY_FIRST_REPLICA
        )
    on_read = tf.VariableSynchronization.ON_READ
    if kwargs.get("synchronization") == on_read:
        kwargs["synchronization"] = tf.VariableSynchronization.AUTO
    return next_creator(**kwargs)
