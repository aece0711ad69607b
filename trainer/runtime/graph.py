"""Traces our own code without AutoGraph, and research code with it.

AutoGraph turns `if` and `for` over tensors into graph operations by rewriting
every function that is called: that takes most of the time of tracing a step.
This package writes `tf.cond` and `tf.while_loop` itself, so only what users
wrote is rewritten. Keras leaves AutoGraph out of `fit` altogether.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.runtime.tensorflow_private import autograph_config

# Not rewritten, whoever calls them.
_PACKAGES = ("trainer", "keras", "tensorflow")
# Nor where what users wrote calls it, as by `super()`. Keras and TensorFlow are
# in these rules as they come.
autograph_config.CONVERSION_RULES = (
    autograph_config.DoNotConvert("trainer"),
    *autograph_config.CONVERSION_RULES,
)
# The status outside any graph function: `graph_function` disables AutoGraph
# for everything that is called within it.
_UNDECIDED = tf.__internal__.autograph.control_status_ctx()


def graph_function(function: Callable[..., Any], **options: Any) -> Any:
    """A `tf.function` that is traced without AutoGraph.

    Args:
        function: what to trace.
        **options: for `tf.function`, such as `jit_compile`.
    """
    # Both are needed: autograph=False leaves the function as it is, and `plain`
    # also switches AutoGraph off for what it calls.
    made = tf.function(plain(function), autograph=False, **options)
    # TensorFlow takes the methods of several Trainers for one function that is
    # traced too often. `trainer.runtime.retracing` warns where it is.
    made._omit_frequent_tracing_warning = True
    return made


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that AutoGraph leaves as it is, such as one for `Dataset.map`.

    Args:
        function: the function; research code that it calls is `converted`.
    """
    unchanged: Callable[..., Any] = tf.autograph.experimental.do_not_convert(
        function
    )
    return unchanged


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Research code with its `if` and `for` over tensors in the graph.

    Args:
        function: a function, a method, or an object that can be called.

    Returns:
        The same behaviour by way of AutoGraph; the function itself, if it is
        of this package or of Keras, or if steps run as Python: a debugger
        could not step through what AutoGraph makes of it.
    """
    if tf.executing_eagerly() and tf.config.functions_run_eagerly():
        return function
    module = getattr(function, "__module__", None) or type(function).__module__
    if module.partition(".")[0] in _PACKAGES:
        return function
    return tf.__internal__.autograph.tf_convert(function, _UNDECIDED)


def only_if(
    condition: tf.Tensor,
    act: Callable[[], object],
    otherwise: Callable[[], object] | None = None,
) -> None:
    """Does something in the graph where a boolean scalar is true.

    Args:
        condition: the scalar.
        act: does it, while it is traced.
        otherwise: what is done instead where it is false.
    """

    def branch(do: Callable[[], object] | None) -> Callable[[], tf.Tensor]:
        def traced() -> tf.Tensor:
            if do is not None:
                do()
            return tf.constant(0)  # Both branches of tf.cond need a value.

        return traced

    tf.cond(condition, branch(act), branch(otherwise))


def repeat(
    body: Callable[[tf.Tensor, Any], Any],
    state: Any,
    *,
    stop: tf.Tensor | int,
    start: tf.Tensor | int = 0,
) -> Any:
    """Applies `body` to each integer of a range, one after the other.

    Args:
        body: from an integer scalar and the state to the next state, of the
            same structure, shapes and dtypes.
        state: a structure of tensors, or of one for each replica.
        stop: scalar, the end of the range.
        start: scalar, where it begins.

    Returns:
        The last state.
    """
    # A tensor even if it is a number: the loop stays a loop, and is not
    # unrolled.
    stop = tf.convert_to_tensor(stop)

    def next_state(number: tf.Tensor, before: Any) -> tuple[tf.Tensor, Any]:
        return number + 1, body(number, before)

    _, last = tf.while_loop(
        lambda number, _: number < stop,
        next_state,
        (tf.convert_to_tensor(start, stop.dtype), state),
    )
    return last
