"""`Trainer.global_loss`: a loss over the outputs of the whole global batch.

Every replica computes it from the outputs of all replicas, and weighs it by
its share of the examples. So the replicas' losses add up to the loss, and
their gradients to its gradient.
"""

from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.graph import converted, graph_function
from trainer.step.keras.private import keras_mask, set_keras_mask
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
    step = spec.parts.step.read_value()
    whole = _gathered(spec, parts)
    # All replicas draw what the first one draws, or they would compute
    # different losses.
    with spec.parts.randomness.at(step, 0, _STREAM, replica=0):
        global_loss = converted(spec.methods.global_loss)
        value = tf.convert_to_tensor(global_loss(*whole))
    if value.shape.rank != 0:
        raise UserError(
            f"{name} returned the shape {value.shape}. Return a scalar, such "
            "as tf.reduce_mean(...)."
        )
    # Divided by the examples of all replicas after the reduction.
    total = tf.cast(value, tf.float32) * piece.examples
    return Term(EXAMPLES, piece.or_zeros(total), piece.examples)


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
    leaves = tf.nest.flatten(parts)
    masks = [None if leaf is None else keras_mask(leaf) for leaf in leaves]
    # What is not gathered becomes zeros of the right shape.
    used = _used(spec, parts, masks)
    # Gathered along with the rest for its number of rows, even if nothing else
    # is.
    own = next(leaf for leaf in leaves if leaf is not None)
    found = all_gather(
        # One gather: one set of transfers for leaves, masks and row counts.
        {
            "rows": tf.zeros(tf.shape(own)[:1]),
            "leaves": [
                one for one, use in zip(leaves, used, strict=True) if use
            ],
            "masks": [mask for mask in masks if mask is not None],
        }
    ).values
    travelled, masked = iter(found["leaves"]), iter(found["masks"])
    whole = []
    for leaf, mask, use in zip(leaves, masks, used, strict=True):
        made = leaf
        if use:
            made = next(travelled)
        elif leaf is not None:
            made = _nothing_like(leaf, rows=found["rows"])
        if mask is not None:
            set_keras_mask(made, next(masked))
        whole.append(made)
    return tf.nest.pack_sequence_as(parts, whole)


def _nothing_like(leaf: tf.Tensor, *, rows: tf.Tensor) -> tf.Tensor:
    """Zeros of the shape that a leaf has in the global batch."""
    shape = tf.concat([tf.shape(rows), tf.shape(leaf)[1:]], 0)
    return tf.ensure_shape(
        tf.zeros(shape, leaf.dtype), [*rows.shape, *leaf.shape[1:]]
    )


def _used(
    spec: StepSpec, parts: tuple[Any, Any, Any], masks: list[Any]
) -> list[bool]:
    """Which leaves `global_loss` looks at: the others need not travel.

    It is traced once more to find out. Otherwise large inputs, such as images,
    would travel in every step for nothing.
    """
    leaves = tf.nest.flatten(parts)
    numbers = [i for i, leaf in enumerate(leaves) if leaf is not None]

    def look(given: list[tf.Tensor], given_masks: list[tf.Tensor]) -> tf.Tensor:
        whole, left = list(leaves), iter(given_masks)
        for i, tensor in zip(numbers, given, strict=True):
            whole[i] = tensor
            if masks[i] is not None:
                set_keras_mask(tensor, next(left))
        zero = tf.constant(0)
        drawing = spec.parts.randomness.at(zero, 0, _STREAM, replica=0)
        # This trace is thrown away and must not change a variable.
        with keras.StatelessScope(), drawing:
            packed = tf.nest.pack_sequence_as(parts, whole)
            global_loss = converted(spec.methods.global_loss)
            return tf.convert_to_tensor(global_loss(*packed))

    def spec_of(leaf: Any) -> tf.TensorSpec:
        rows = leaf.shape[0]
        if rows is not None:
            rows *= spec.plugin.num_replicas
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype)

    # A TensorSpec cannot describe these; all_gather refuses them with a
    # sentence.
    if any(isinstance(leaves[i], tf.SparseTensor) for i in numbers):
        return [leaf is not None for leaf in leaves]
    traced = graph_function(look).get_concrete_function(
        [spec_of(leaves[i]) for i in numbers],
        [spec_of(mask) for mask in masks if mask is not None],
    )
    used = [False] * len(leaves)
    # The given leaves are the first inputs of the graph; masks and captures
    # follow.
    for i, placeholder in zip(numbers, traced.inputs, strict=False):
        used[i] = bool(placeholder.consumers())
    return used
