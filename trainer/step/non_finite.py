"""Runs a step as Python, and finds where the first bad value arises.

Bad is what is not finite: NaN or an infinity. What a step computes is looked
at in the order in which it is computed: inputs, the outputs of layers, the
loss, gradients on their way back through the layers, gradients of variables,
and the update.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.step.keras.private import keras_mask, native, set_keras_mask


class Finder:
    """Looks at values in the order in which they are computed.

    Args:
        model: of the step.

    Attributes:
        found: a clause on the first bad value, such as `"the output of the
            layer 'dense' (Dense): 2 of 8 values are nan"`.
        loss: of the global batch, where the Trainer's own step was made.
        gradient_norm: likewise.
    """

    def __init__(self, model: keras.Model) -> None:
        self.found: str | None = None
        self.loss = self.gradient_norm = math.nan
        self._model = model
        # Whether the gradients of variables are still to be added to it.
        self._is_open = False

    def look(
        self, what: str, structure: Any, *, is_backward: bool = False
    ) -> None:
        """Notes a structure if it is the first that holds a bad value."""
        if self.found is None and (amount := _bad(structure)):
            self.found = f"{what}: {amount}"
            self._is_open = is_backward

    def look_at_batch(self, batch: Any, part: str) -> None:
        """Looks at what a step reads; names the examples."""
        for path, leaf in keras.tree.flatten_with_path(batch):
            if self.found is not None or not _bad(leaf):
                continue
            first = "x"
            if isinstance(batch, tuple):
                first = ("x", "y", "sample_weight")[path[0]]
                path = path[1:]
            where = first + "".join(f"[{one!r}]" for one in path)
            self.found = (
                f"the data, {where}{part}, in rows {_rows(leaf)}: {_bad(leaf)}"
            )

    def look_at_variables(self, why: str) -> None:
        """Looks at the model's variables after they may have changed."""
        for variable in self._model.variables:
            self.look(f"{why} {variable.path}", native(variable).read_value())

    def look_at_gradients(
        self, what: str, gradients: Any, variables: Any = None
    ) -> None:
        """Looks at gradients, by the numbers of their variables.

        Args:
            what: which gradient, such as `"the gradient of"`.
            gradients: variable number to gradient, or a list.
            variables: by default the model's trainable ones.
        """
        variables = variables or self._model.trainable_variables
        if not isinstance(gradients, dict):
            gradients = dict(enumerate(gradients))
        bad = [
            f"{getattr(variables[i], 'path', variables[i].name)} ({amount})"
            for i, gradient in gradients.items()
            if (amount := _bad(gradient))
        ]
        if not bad:
            return
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        listed = ", ".join(bad[:3]) + more
        if self.found is None:
            self.found = f"{what} {listed}"
        elif self._is_open:
            # What a layer's backward pass was found to do shows in these.
            self.found += f", with the gradient of {listed}"
        self._is_open = False

    def look_at_reduced(self, reduced: Any) -> None:
        """Looks at what all replicas agree on."""
        for measured in reduced.measured:
            self.loss = float(measured.loss)
            self.gradient_norm = float(measured.gradient_norm)
            self.look(
                "the loss of the batch, with regularizers and added losses",
                measured.loss,
            )
        self.look_at_gradients(
            "the gradient, summed over the batch and with that of "
            "regularizers, of",
            reduced.gradients,
        )
        for measured in reduced.measured:
            self.look(
                "the norm of the gradient, whose values are finite",
                measured.gradient_norm,
            )


@contextlib.contextmanager
def looking(trainer: Any, finder: Finder) -> Iterator[None]:
    """Lets a finder look at each step that runs as Python in this context.

    Args:
        trainer: whose methods make the step.
        finder: notes the first bad value.
    """
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, made: Callable[..., Any]) -> None:
            inside = name in vars(owner)
            before = getattr(owner, name)
            setattr(owner, name, made)
            if inside:
                stack.callback(setattr, owner, name, before)
            else:
                stack.callback(delattr, owner, name)

        replace(keras.Operation, "__call__", _called(finder))
        for name, what in _RESULTS.items():
            replace(trainer, name, _after(finder, getattr(trainer, name), what))
        for name, wrapped in _WRAPPED.items():
            replace(trainer, name, wrapped(finder, getattr(trainer, name)))
        yield


def _called(finder: Finder) -> Callable[..., Any]:
    # Every layer's `__call__` comes here, with its inputs cast and checked.
    own_call = keras.Operation.__call__

    def call(operation: Any, *arguments: Any, **named: Any) -> Any:
        name = getattr(operation, "path", None) or operation.name
        what = f"the layer {name!r} ({type(operation).__name__})"

        def watched(value: Any, back: str) -> Any:
            return _watch_gradient(
                value, lambda g: finder.look(back, g, is_backward=True)
            )

        arguments, named = keras.tree.map_structure(
            lambda value: watched(
                value, f"the backward pass of {what}, into its input"
            ),
            (arguments, named),
        )
        outputs = own_call(operation, *arguments, **named)
        finder.look(f"the output of {what}", outputs)
        return keras.tree.map_structure(
            lambda value: watched(value, f"the gradient that comes to {what}"),
            outputs,
        )

    return call


def _watch_gradient(value: Any, look: Callable[[Any], None]) -> Any:
    """The same tensor, whose gradient is looked at."""
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return value

    @tf.custom_gradient
    def same(given: tf.Tensor) -> Any:
        def back(gradient: tf.Tensor) -> tf.Tensor:
            look(gradient)
            return gradient

        return tf.identity(given), back

    made = same(value)
    mask = keras_mask(value)
    if mask is not None:
        set_keras_mask(made, mask)
    return made


def _after(
    finder: Finder, function: Callable[..., Any], what: str
) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        finder.look(what, result)
        return result

    return call


def _sums(finder: Finder, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(batch: Any) -> Any:
        sums, logs = function(batch)
        for gradients in sums.gradients.values():
            finder.look_at_gradients("the gradient of", gradients)
        finder.look("the sum of the losses", sums.losses)
        return sums, logs

    return call


def _reduced(
    finder: Finder, function: Callable[..., Any]
) -> Callable[..., Any]:
    def call(sums: Any) -> Any:
        reduced = function(sums)
        finder.look_at_reduced(reduced)
        return reduced

    return call


def _gradients(
    finder: Finder, function: Callable[..., Any]
) -> Callable[..., Any]:
    def call(tape: Any, loss: Any, variables: Any) -> Any:
        finder.look("the loss", loss.total)
        found = function(tape, loss, variables)
        finder.look_at_gradients("the gradient of", found, variables)
        return found

    return call


def _applied(
    finder: Finder, function: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        # What is bad already is not the update's doing.
        finder.look_at_variables("before the update, the variable")
        function(*arguments, **named)
        finder.look_at_variables(
            "the update, from finite gradients, of the variable"
        )

    return call


# By method of the Trainer: what it returns, or how it is wrapped.
_RESULTS = {
    "forward": "the outputs of the model",
    "per_example_loss": "the loss of the examples",
    "global_loss": "the global loss",
}
_WRAPPED = {
    "gradient_sums": _sums,
    "reduce_gradients": _reduced,
    "gradients": _gradients,
    "apply_gradients": _applied,
}


def _bad(structure: Any) -> str:
    """How many values are not finite, in words; empty if none is."""
    nans = infinities = size = 0
    for leaf in tf.nest.flatten(structure, expand_composites=True):
        if not isinstance(leaf, tf.Tensor) or not leaf.dtype.is_floating:
            continue
        nans += int(tf.math.count_nonzero(tf.math.is_nan(leaf)))
        infinities += int(tf.math.count_nonzero(tf.math.is_inf(leaf)))
        size += int(tf.size(leaf))
    kinds = [
        f"{count:,} of {size:,} values are {name}"
        for count, name in ((nans, "nan"), (infinities, "infinite"))
        if count
    ]
    return " and ".join(kinds)


def _rows(leaf: Any) -> str:
    """The numbers of the first few examples that hold a bad value."""
    flat = tf.reshape(leaf, [tf.shape(leaf)[0], -1])
    bad = tf.reduce_any(~tf.math.is_finite(flat), axis=1)
    numbers = tf.where(bad)[:, 0].numpy().tolist()
    more = ", ..." if len(numbers) > 5 else ""
    return ", ".join(map(str, numbers[:5])) + more
