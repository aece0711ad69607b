"""The workers of a chief, which hands steps to whichever is free."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer import StartAgain
from trainer.plugin_api import MakePieces, outside_graph
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.strategies.step_counts import StepCounts

_worker_index = tf.distribute.coordinator.experimental_get_current_worker_index
# How often the chief looks up from its wait for the workers.
_LOOK_SECONDS = 0.5


def cut_into_rounds(
    num_steps: int,
    *,
    num_workers: int,
    steps_per_closure: int | None,
    max_staleness: int | None,
) -> list[list[int]]:
    """Cuts a host loop into rounds of closures, in steps.

    A round is waited for before the next begins. If staleness is bounded, a
    round is so small that at most the bound lies in its other closures:
    between a read and its update there are no others.

    Args:
        num_steps: of the host loop.
        num_workers: how many closures run at once.
        steps_per_closure: see `WorkerPool`.
        max_staleness: see there.

    Returns:
        For each round, the number of steps of each of its closures.
    """
    share = -(-num_steps // num_workers)
    size = steps_per_closure or max(1, share // 8)
    per_round = num_steps
    if max_staleness is not None:
        per_round = min(num_workers, max_staleness + 1)
        if per_round > 1:
            size = min(size, max_staleness // (per_round - 1))
    sizes = [size] * (num_steps // size)
    if num_steps % size:
        sizes.append(num_steps % size)
    return [sizes[i : i + per_round] for i in range(0, len(sizes), per_round)]


class WorkerPool:
    """Schedules loops of steps on workers, and waits for them.

    Args:
        strategy: the chief's.
        num_workers: how many there are.
        channel: tells when the run cannot go on.
        watched: surrounds what waits for peers, such as `Peers.watched`.
        scope: a context in which variables come to lie on the servers.
        counts: the variables that count steps.
        steps_per_closure: steps that are scheduled as one unit; `None` takes
            an eighth of a worker's share.
        max_staleness: at most so many updates lie between reading weights
            and applying the gradient; `None` sets no bound.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        num_workers: int,
        channel: Channel,
        watched: Callable[[], contextlib.AbstractContextManager[None]],
        scope: Callable[[], contextlib.AbstractContextManager[None]],
        counts: StepCounts,
        steps_per_closure: int | None,
        max_staleness: int | None,
    ) -> None:
        self.strategy = strategy
        self._num_workers = num_workers
        self._channel = channel
        self._watched = watched
        self._scope = scope
        self._counts = counts
        self._steps_per_closure = steps_per_closure
        self._max_staleness = max_staleness
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            strategy
        )

    @functools.cached_property
    def updates(self) -> tf.Variable:
        """How many updates this run's servers have applied."""
        with self._scope():
            return tf.Variable(0, dtype=tf.int64, trainable=False)

    def deal(self, make_pieces: MakePieces) -> Any:
        """Gives each worker every n-th batch; returns the iterator."""
        count = self._num_workers
        before = int(self.updates.numpy())

        def make_dataset(context: tf.distribute.InputContext) -> Any:
            # Run on the worker when it comes, and again when it comes back:
            # it then begins near the present step.
            rounds = (self.updates.read_value() - before) // count
            worker = _worker_index()
            return make_pieces(
                range(1),
                offset=rounds * count + tf.cast(worker, tf.int64),
                every=count,
            )

        return self.iterator(make_dataset)

    def iterator(self, make_dataset: Callable[..., Any]) -> Any:
        """An iterator whose data each worker makes for itself."""

        def on_worker() -> Any:
            return self.strategy.distribute_datasets_from_function(make_dataset)

        return iter(self._coordinator.create_per_worker_dataset(on_worker))

    def train(
        self, loop: Callable[..., Any], iterator: Any, num_steps: int
    ) -> list[Any]:
        """Runs so many steps, each counted once; see `run`."""
        before, losses = self._counts.values(), self._channel.losses
        results = []
        rounds = cut_into_rounds(
            num_steps,
            num_workers=self._num_workers,
            steps_per_closure=self._steps_per_closure,
            max_staleness=self._max_staleness,
        )
        for sizes in rounds:
            results += self.run(loop, iterator, sizes)
        self._counts.correct(
            before,
            updates=self.updates,
            num_steps=num_steps,
            losses=self._channel.losses - losses,
        )
        return results

    def run(
        self, loop: Callable[..., Any], iterator: Any, sizes: list[int]
    ) -> list[Any]:
        """Runs a loop on free workers, once for each number of steps.

        Returns:
            What each call returned, as NumPy arrays.

        Raises:
            StartAgain: a parameter server is gone; with it the variables.
        """
        coordinator = self._coordinator
        with self._watched(), outside_graph():
            scheduled = [
                coordinator.schedule(
                    loop, args=(iterator, tf.constant(size, tf.int64))
                )
                for size in sizes
            ]
            self._join()
            return [coordinator.fetch(one) for one in scheduled]

    def _join(self) -> None:
        """Waits for the workers, but not for what a lost server keeps."""
        # Its public name has no limit.
        queue = self._coordinator._cluster.closure_queue
        while not queue.wait(timeout=_LOOK_SECONDS):
            if self._channel.end_reason is not None:
                raise StartAgain(self._channel.end_reason)
