"""Random numbers that depend on (seed, step, micro-batch, replica) alone.

A Keras `SeedGenerator` keeps a counter in a variable. Replicas share it and
so draw the same dropout masks, and a checkpoint of the weights does not hold
it. Inside a step the generators of the model are therefore functions of the
step: each replica draws its own numbers, and a resumed run draws the numbers
that the uninterrupted run would have drawn. In a loop within the model each
iteration draws its own.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.runtime.tensorflow_private import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)
from trainer.step import as_graph
from trainer.step.context import Drawing, current_graph, step_context
from trainer.step.keras.private import (
    seed_dtype,
    seed_generators,
    unseeded_drawn_from,
)

# A number that no generator of a model has: they are counted from zero.
_NUMBER_OF_UNSEEDED = 0x7FFFFFFF


class StepRandomness:
    """Takes over the seed generators of a model while a step is traced.

    Args:
        model: the built model; its generators are numbered in layer order.
        seed: the run's seed.
    """

    def __init__(self, model: keras.Model, seed: int) -> None:
        self._seed = seed
        for number, (layer, generator) in enumerate(seed_generators(model)):
            self._take_over(generator, number, layer)

    @contextlib.contextmanager
    def at(
        self,
        step: tf.Tensor,
        micro: tf.Tensor | int = 0,
        stream: int = 0,
        *,
        replica: int | None = None,
    ) -> Iterator[None]:
        """Fixes what the generators depend on, in replica context.

        Args:
            step: scalar integer, the steps that are done.
            micro: the micro-batch's index within the step.
            stream: separates uses that share step numbers.
            replica: whose numbers to draw; `None` draws this replica's own.
        """
        if replica is None:
            context = tf.distribute.get_replica_context()
            # A trial runs outside of replicas.
            replica = context.replica_id_in_sync_group if context else 0
        key = tf.constant([self._seed & 0x7FFFFFFF, stream], tf.int32)
        # Folded in one by one: all are tensors of the graph, and a hash of
        # their sum would collide.
        for word in (step, micro, replica):
            key = tf.random.experimental.stateless_fold_in(
                key, tf.cast(word, tf.int32)
            )
        # Nested uses, such as global_loss within a step, restore what was
        # there.
        with (
            step_context.within(
                drawing=Drawing(key, {}), graph=current_graph()
            ),
            unseeded_drawn_from(_UNSEEDED),
        ):
            yield

    def _take_over(
        self, generator: keras.random.SeedGenerator, number: int, layer: str
    ) -> None:
        own_next = generator.next

        def next_seed(ordered: bool = True) -> Any:
            if step_context.drawing is None:
                # Outside a step: predict, initializers.
                return own_next(ordered)
            key = _draw(number, f"The layer {layer!r}")
            return tf.cast(key, generator.state.dtype)

        # Not through Keras' own __setattr__, which would track the function.
        object.__setattr__(generator, "next", next_seed)


def _draw(number: int, owner: str) -> tf.Tensor:
    """The next seed of a generator in this step."""
    drawing = step_context.drawing
    assert drawing is not None
    # Counted while tracing: the position of a draw in the program.
    draw = drawing.draws.get(number, 0)
    drawing.draws[number] = draw + 1
    key = drawing.key
    for word in (number, draw, *_iterations(owner)):
        key = tf.random.experimental.stateless_fold_in(key, word)
    return key


def _iterations(owner: str) -> list[tf.Tensor]:
    """The current iteration of each loop around a draw, innermost first.

    A loop's body is traced once: without these, every iteration would draw
    the same.

    Raises:
        UserError: the draw is in a function that is traced once, and perhaps
            called more than once.
    """
    graph, found = current_graph(), []
    while graph is not step_context.graph:
        if isinstance(graph, WhileBodyFuncGraph | WhileCondFuncGraph):
            # TensorFlow's own counter is every loop's first variable.
            found.append(graph.inputs[0])
        elif not isinstance(graph, CondBranchFuncGraph):
            raise UserError(
                f"{owner} draws random numbers in a tf.function of its own, "
                "where each call in a step would draw the same. Leave "
                "tf.function out: the step around it is one."
            )
        graph = graph.outer_graph
    return found


class _Unseeded:
    """Stands in for Keras' global generator, used where no seed is given."""

    def next(self, ordered: bool = True) -> tf.Tensor:
        """See `keras.random.SeedGenerator.next`."""
        key = _draw(_NUMBER_OF_UNSEEDED, "A layer")
        return tf.cast(key, seed_dtype())


_UNSEEDED = _Unseeded()
as_graph.install()
