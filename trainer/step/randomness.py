"""Random numbers that depend on (seed, step, micro-batch, replica) alone.

A Keras `SeedGenerator` keeps a counter in a variable. Replicas share it and
so draw the same dropout masks, and a checkpoint of the weights forgets it.
Inside a step the generators of the model are therefore made functions of the
step: each replica draws its own numbers, and a resumed run draws the numbers
that the unbroken run would have drawn.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from trainer.step.keras_hooks import seed_generators


class StepRandomness:
    """Takes over the seed generators of a model while a step is traced.

    Args:
        model: the built model; its generators are numbered in layer order.
        seed: the run's seed.
    """

    def __init__(self, model: keras.Model, seed: int) -> None:
        # Mirrored strategies trace each replica in a thread of its own.
        self._local = threading.local()
        self._seed = seed
        for number, generator in enumerate(seed_generators(model)):
            self._take_over(generator, number)

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
            stream: tells uses apart that share step numbers.
            replica: whose numbers to draw; `None` draws this replica's own.
        """
        if replica is None:
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group if context else 0
        key = tf.constant([self._seed & 0x7FFFFFFF, stream], tf.int32)
        for word in (step, micro, replica):
            key = tf.random.experimental.stateless_fold_in(
                key, tf.cast(word, tf.int32)
            )
        before = getattr(self._local, "key", None)
        draws = getattr(self._local, "draws", None)
        self._local.key, self._local.draws = key, {}
        try:
            yield
        finally:
            self._local.key, self._local.draws = before, draws

    def _take_over(
        self, generator: keras.random.SeedGenerator, number: int
    ) -> None:
        own_next = generator.next

        def next_seed(ordered: bool = True) -> Any:
            key = getattr(self._local, "key", None)
            if key is None:  # Outside a step: predict, initializers.
                return own_next(ordered)
            draw = self._local.draws.get(number, 0)
            self._local.draws[number] = draw + 1
            for word in (number, draw):
                key = tf.random.experimental.stateless_fold_in(key, word)
            return tf.cast(key, generator.state.dtype)

        object.__setattr__(generator, "next", next_seed)
