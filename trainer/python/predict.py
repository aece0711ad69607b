"""`Trainer.predict`: the outputs for any number of examples."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.data.batches import Batches
from trainer.errors import outside_graph
from trainer.loop.callback_list import CallbackList
from trainer.loop.evaluator import count_of
from trainer.loop.run import Run
from trainer.runtime.graph import converted, graph_function
from trainer.step.checks import check_inputs
from trainer.step.spec import StepSpec
from trainer.strategy.checks import own_predict_step
from trainer.strategy.graph_loop import eagerly

# Keeps the random numbers apart from those of training, evaluation and trials.
_STREAM = 3


def _make_predict(spec: StepSpec) -> Callable[[Any, tf.Tensor], Any]:
    """The traced function from a batch to its outputs."""
    # On one device: what a replica computes depends on none of the others.
    randomness, step = spec.parts.randomness, spec.parts.step

    own = None if spec.has_own("forward") else own_predict_step(spec.model)

    def outputs_of(batch: Any, number: tf.Tensor) -> Any:
        spec.bind()
        with randomness.at(step.read_value(), number, _STREAM, replica=0):
            if own is not None:
                return converted(own)(batch)
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            return converted(spec.methods.forward)(x, training=False)

    return graph_function(outputs_of, reduce_retracing=True)


def predict(
    run: Run,
    batches: Batches,
    *,
    steps: int | None,
    called: CallbackList,
) -> Any:
    """Collects the outputs for all examples, with the averaged weights.

    Args:
        run: the call.
        batches: of the inputs, and whatever comes with them.
        steps: how many batches, but at most all; `None` means all.
        called: the callbacks, with events as in Keras.

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
            outputs_of, batches, model=run.model, steps=steps, called=called
        )


def _collect(
    outputs_of: Callable[[Any, tf.Tensor], Any],
    batches: Batches,
    *,
    model: keras.Model,
    steps: int | None,
    called: CallbackList,
) -> Any:
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batches.element_spec)
    check_inputs(model, inputs, batch_size=batches.batch_size)
    count = count_of(batches, steps, name="steps")
    found: list[Any] = []
    model.stop_predicting = False
    called.call("on_predict_begin", {})
    numbered = enumerate(batches.read(start=0).take(count))
    with outside_graph():
        for begin in range(0, count, called.execution):
            called.call("on_predict_batch_begin", begin, {})
            parts = []
            for number, batch in itertools.islice(numbered, called.execution):
                parts.append(outputs_of(batch, tf.constant(number)))
            outputs = _joined(parts)
            found.append(outputs)
            end = begin + called.execution - 1
            called.call("on_predict_batch_end", end, {"outputs": outputs})
            if model.stop_predicting:
                break
    called.call("on_predict_end", {})
    return _joined(found)


def _joined(parts: Sequence[Any]) -> Any:
    """The rows of several batches, as NumPy arrays."""
    return keras.tree.map_structure(
        lambda *its: np.concatenate(
            [keras.ops.convert_to_numpy(one) for one in its]
        ),
        *parts,
    )
