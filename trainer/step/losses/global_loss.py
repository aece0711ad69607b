"""`Trainer.global_loss`: a loss over the outputs of the whole global batch.

Every replica computes it from the outputs of all replicas, and weighs it by
its share of the examples. So the replicas' losses add up to the loss, and
their gradients to its gradient.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted, graph_function
from trainer.step.keras.private import tensors_apart
from trainer.step.losses.loss_terms import EXAMPLES, Term
from trainer.step.reductions.all_gather import all_gather
from trainer.step.replica_batch import ReplicaBatch, is_weighted, real_rows
from trainer.step.spec import StepSpec

_STREAM = 3  # Random numbers other than those of the forward pass.


def global_term(
    spec: StepSpec,
    batch: Any,
    *,
    piece: ReplicaBatch,
    parts: tuple[Any, Any, Any],
) -> Term:
    """What `global_loss` adds to the loss, on one replica.

    Args:
        spec: whose loss it is.
        batch: the replica's.
        piece: the same, counted.
        parts: inputs, targets and outputs.

    Raises:
        UserError: there are sample weights or padding, which it would not
            honor, or it is not a scalar.
    """
    name = f"{type(spec.methods).__name__}.global_loss"
    _check_batch(spec, batch, name)
    whole = _gathered(spec, parts)
    value = _called(spec, spec.parts.step.read_value(), whole)
    if value.shape.rank != 0:
        raise UserError(
            f"{name} returned the shape {value.shape}. Return a scalar, such "
            "as tf.reduce_mean(...)."
        )
    # Divided by the examples of all replicas after the reduction.
    total = tf.cast(value, tf.float32) * piece.examples
    return Term(EXAMPLES, piece.or_zeros(total), piece.examples)


def _called(spec: StepSpec, step: tf.Tensor, whole: Any) -> tf.Tensor:
    # All replicas draw what the first one draws, or they would compute
    # different losses.
    with spec.parts.randomness.at(step, 0, _STREAM, replica=0):
        return tf.convert_to_tensor(converted(spec.methods.global_loss)(*whole))


def _check_batch(spec: StepSpec, batch: Any, name: str) -> None:
    if is_weighted(batch):
        raise UserError(
            f"The data has sample weights, which {name} does not get. Yield "
            "them among the targets, and apply them there."
        )
    if real_rows(batch) is None:
        return
    data = spec.batches("eval")
    # Where all batches are full there is no padding, in spite of the static
    # shapes.
    if data.last_size is None or data.last_size != data.batch_size:
        raise UserError(
            f"{name} cannot tell examples from padding, which the last "
            f"evaluation batch gets under the strategy {spec.plugin.name!r}."
            " Choose a batch_size that divides the evaluation data."
        )


def _gathered(spec: StepSpec, parts: tuple[Any, Any, Any]) -> Any:
    """Inputs, targets and outputs of the global batch, with their masks."""
    if spec.plugin.num_replicas == 1:
        return parts
    tensors, put_back = tensors_apart(parts)
    # What is not gathered becomes zeros of the right shape.
    used = _used(spec, tensors, put_back)
    # One gather: one set of transfers. Along with the rest for its number of
    # rows, even if nothing else is.
    rows, *found = all_gather(
        [
            tf.zeros(tf.shape(tensors[0])[:1]),
            *(one for one, use in zip(tensors, used, strict=True) if use),
        ]
    ).values
    travelled = iter(found)
    return put_back(
        [
            next(travelled) if use else _nothing_like(one, rows=rows)
            for one, use in zip(tensors, used, strict=True)
        ]
    )


def _nothing_like(tensor: tf.Tensor, *, rows: tf.Tensor) -> tf.Tensor:
    """Zeros of the shape that a tensor has in the global batch."""
    shape = tf.concat([tf.shape(rows), tf.shape(tensor)[1:]], 0)
    return tf.ensure_shape(
        tf.zeros(shape, tensor.dtype), [*rows.shape, *tensor.shape[1:]]
    )


def _used(
    spec: StepSpec, tensors: list[Any], put_back: Callable[..., Any]
) -> list[bool]:
    """Which tensors `global_loss` looks at: the others need not travel.

    It is traced once more to find out. Otherwise large inputs, such as images,
    would travel in every step for nothing.
    """
    # A TensorSpec cannot describe these; all_gather refuses them with a
    # sentence.
    if any(isinstance(one, tf.SparseTensor) for one in tensors):
        return [True] * len(tensors)

    def look(*given: tf.Tensor) -> tf.Tensor:
        # This trace is thrown away and must not change a variable.
        with keras.StatelessScope():
            return _called(spec, tf.constant(0), put_back(given))

    def spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
        rows = tensor.shape[0]
        if rows is not None:
            rows *= spec.plugin.num_replicas
        return tf.TensorSpec([rows, *tensor.shape[1:]], tensor.dtype)

    traced = graph_function(look).get_concrete_function(*map(spec_of, tensors))
    # Captures follow.
    return [bool(one.consumers()) for one in traced.inputs[: len(tensors)]]
