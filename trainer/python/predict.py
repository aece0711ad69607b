"""`Trainer.predict`: the outputs for any number of examples."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.data.batches import Batches
from trainer.errors import outside_graph
from trainer.loop.evaluator import count_of
from trainer.loop.run import Run
from trainer.runtime.graph import converted, graph_function
from trainer.step.checks import check_inputs
from trainer.step.spec import StepSpec
from trainer.strategy.graph_loop import eagerly

# Keeps the random numbers apart from those of training, evaluation and trials.
_STREAM = 3


def _make_predict(spec: StepSpec) -> Callable[[Any, tf.Tensor], Any]:
    """The traced function from a batch's inputs to its outputs."""
    # On one device: what a replica computes depends on none of the others.
    randomness, step = spec.parts.randomness, spec.parts.step

    def outputs_of(x: Any, number: tf.Tensor) -> Any:
        spec.bind()
        with randomness.at(step.read_value(), number, _STREAM, replica=0):
            return converted(spec.methods.forward)(x, training=False)

    return graph_function(outputs_of, reduce_retracing=True)


def predict(
    run: Run,
    batches: Batches,
    *,
    steps: int | None,
    event: Callable[..., None],
) -> Any:
    """Collects the outputs for all examples, with the averaged weights.

    Args:
        run: the call.
        batches: of the inputs, and whatever comes with them.
        steps: how many batches, but at most all; `None` means all.
        event: calls an event of the callbacks, as in Keras.

    Returns:
        NumPy arrays with one row for each example, in the model's structure.

    Raises:
        UserError: there is no end of the batches, or they do not fit.
    """
    spec, ema = run.spec, run.parts.ema
    outputs_of = run.runner("predict", lambda: _make_predict(spec))
    with (
        ema.swapped_in() if ema else contextlib.nullcontext(),
        eagerly() if spec.run_eagerly else contextlib.nullcontext(),
    ):
        return _collect(
            outputs_of, batches, model=run.model, steps=steps, event=event
        )


def _collect(
    outputs_of: Callable[[Any, tf.Tensor], Any],
    batches: Batches,
    *,
    model: keras.Model,
    steps: int | None,
    event: Callable[..., None],
) -> Any:
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batches.element_spec)
    check_inputs(model, inputs, batch_size=batches.batch_size)
    count = count_of(batches, steps, name="steps")
    found = []
    event("on_predict_begin", {})
    with outside_graph():
        for number, batch in enumerate(batches.read(start=0).take(count)):
            event("on_predict_batch_begin", number, {})
            inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            outputs = keras.tree.map_structure(
                keras.ops.convert_to_numpy,
                outputs_of(inputs, tf.constant(number)),
            )
            found.append(outputs)
            event("on_predict_batch_end", number, {"outputs": outputs})
    event("on_predict_end", {})
    return keras.tree.map_structure(
        lambda *parts: np.concatenate(parts), *found
    )
