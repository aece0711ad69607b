"""Checks data against the model and its losses."""

from typing import Any

import keras
from absl import logging

from trainer.data.batches import Batches
from trainer.errors import UserError
from trainer.step.keras.private import symbolic_outputs
from trainer.step.losses import per_output
from trainer.step.losses.probabilities import what_is_odd
from trainer.step.losses.sample_weights import check_weight
from trainer.step.losses.targets import check_shapes, check_values
from trainer.step.spec import StepSpec
from trainer.step.trials.inputs import check_inputs


def check_data(spec: StepSpec, batches: Batches) -> None:
    """Checks what can be known of data before a step is traced.

    Warns where an output and its loss are both valid, but hardly meant.

    Args:
        spec: what the steps are made of. Where research code has a step, a
            loss or a forward pass of its own, that part is its own, too.
        batches: of any split.

    Raises:
        UserError: inputs do not fit the model, or targets do not fit a loss.
    """
    own = {"train_step", "eval_step", "forward"} & spec.overridden
    spec_of = batches.element_spec
    if own or not (
        isinstance(spec_of, tuple | dict) or hasattr(spec_of, "shape")
    ):
        return
    x, y, weight = keras.utils.unpack_x_y_sample_weight(spec_of)
    if isinstance(spec_of, dict) and _misses_targets(spec):
        raise UserError(
            "There is a loss, but the data yields dicts, which are inputs, and "
            "no targets. Let it yield (x, y), such as with dataset.map(lambda "
            "row: (row['x'], row['y']))."
        )
    check_inputs(spec.model, x, batch_size=batches.batch_size)
    y_pred = symbolic_outputs(spec.model)
    if y_pred is None or spec.has_own("per_example_loss"):
        return
    outputs = per_output.split(spec, y, y_pred)
    if y is None and any(one.loss is not None for one in outputs):
        if not spec.has_own("global_loss"):
            raise UserError(
                "There is a loss, but the data has no targets: give (x, y)."
            )
        return
    held, held_weights = _held(batches)
    values = per_output.targets(spec, held, y_pred) if held is not None else []
    counts = per_output.targets(spec, held_weights, y_pred) if values else []
    weights = per_output.targets(spec, weight, y_pred)
    for number, output in enumerate(outputs):
        check_shapes(output, batch_size=batches.batch_size)
        if values:
            check_values(output, values[number], counts[number])
        if weights[number] is not None and output.loss is not None:
            check_weight(
                output,
                weights[number],
                counts[number] if counts else None,
                batch_size=batches.batch_size,
            )
        odd = what_is_odd(output, spec.parts.metrics.given)
        if odd is not None and odd not in spec.tried:
            spec.tried.add(odd)  # Said once.
            logging.warning("%s", odd)


def _misses_targets(spec: StepSpec) -> bool:
    """Whether there is a loss that nothing but targets can be given to."""
    own = spec.has_own("per_example_loss") or spec.has_own("global_loss")
    losses = keras.tree.flatten(spec.loss)
    return not own and any(one is not None for one in losses)


def _held(batches: Batches) -> tuple[Any, Any]:
    """All targets and sample weights, where they are in memory."""
    if batches.arrays is None:
        return None, None
    _, y, weight = keras.utils.unpack_x_y_sample_weight(
        keras.tree.lists_to_tuples(batches.arrays)
    )
    return y, weight
