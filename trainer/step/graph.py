"""Graphs of our own code as it stands, and of research code by AutoGraph.

AutoGraph turns `if` and `for` over tensors into graph operations, by rewriting
every function on the way: that takes most of the time in which a step is
traced. This package says `tf.cond` and `tf.while_loop` itself, so only what
users wrote is rewritten. Keras leaves AutoGraph out of `fit` altogether.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# AutoGraph leaves these as they are; what calls them is no matter.
_PACKAGES = ("trainer", "keras", "tensorflow")
# Not what a graph function sets for all that is called in it.
_UNDECIDED = tf.__internal__.autograph.control_status_ctx()


def graph_function(function: Callable[..., Any], **options: Any) -> Any:
    """A `tf.function` that is traced without AutoGraph.

    Args:
        function: what to trace.
        **options: for `tf.function`, such as `jit_compile`.
    """
    return tf.function(
        tf.autograph.experimental.do_not_convert(function),
        autograph=False,
        **options,
    )


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Research code with its `if` and `for` over tensors in the graph.

    Args:
        function: a function, a method, or an object that can be called.

    Returns:
        The same behaviour by way of AutoGraph; the function itself, if it is
        of this package or of Keras.
    """
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
            return tf.constant(0)  # A condition has a value.

        return traced

    tf.cond(condition, branch(act), branch(otherwise))


def repeat(
    body: Callable[[tf.Tensor, Any], Any],
    state: Any,
    *,
    stop: tf.Tensor | int,
    start: int = 0,
) -> Any:
    """Applies `body` to each integer of a range, one after the other.

    Args:
        body: from an integer scalar and the state to the next state, of the
            same structure, shapes and dtypes.
        state: a structure of tensors, or of one for each replica.
        stop: scalar, the end of the range.
        start: its begin.

    Returns:
        The last state.
    """
    stop = tf.convert_to_tensor(stop)

    def next_state(number: tf.Tensor, before: Any) -> tuple[tf.Tensor, Any]:
        return number + 1, body(number, before)

    _, last = tf.while_loop(
        lambda number, _: number < stop,
        next_state,
        (tf.constant(start, stop.dtype), state),
    )
    return last
