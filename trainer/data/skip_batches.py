"""Leaves out batches of a sequence, because training diverged on them."""

from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

from trainer.data.batches import Batches, endless


def position_of(step: int, skipped: Collection[int]) -> int:
    """Returns the position of the batch that a step takes.

    That is the `step`-th batch that is not skipped.

    Args:
        step: the number of steps before it.
        skipped: positions of batches, from zero.
    """
    position = step
    for one in sorted(skipped):
        if one > position:
            break
        position += 1
    return position


class SteppingOver(Batches):
    """The batches of another source, without some of them.

    The batch of a step depends only on its number and on the skipped
    positions, so that a restarted run continues exactly. Epochs are still
    counted in steps, and have as many batches as before.

    With `Resume.SKIP`, the source is read from the start again after each
    skipped batch.

    Args:
        batches: the source.
        skipped: the positions, from zero, of the batches to leave out.
    """

    def __init__(self, batches: Batches, skipped: Collection[int]) -> None:
        self._batches = batches
        self._skipped = sorted(set(skipped))
        self.batch_size = batches.batch_size
        self.steps_per_epoch = batches.steps_per_epoch
        self.last_size = batches.last_size
        self.resume = batches.resume

    def pieces(
        self,
        *,
        start: int,
        every: int = 1,
        replicas: range,
        num_replicas: int,
        micro: int,
    ) -> tf.data.Dataset:
        """See `Batches.pieces`."""

        def inner(step: int) -> tf.data.Dataset:
            return self._batches.pieces(
                start=position_of(step, self._skipped),
                every=every,
                replicas=replicas,
                num_replicas=num_replicas,
                micro=micro,
            )

        stretches = list(self._stretches(start, every))
        # From the last skipped batch on, the source is used as it is.
        whole = inner(stretches[-1].stop) if stretches else inner(start)
        for stretch in reversed(stretches):
            count = len(stretch) * micro * len(replicas)
            whole = inner(stretch.start).take(count).concatenate(whole)
        return endless(whole)

    def columns(self) -> Any:
        """See `Batches.columns`."""
        return self._batches.columns()

    def why_not_stacked(self) -> str | None:
        """See `Batches.why_not_stacked`."""
        return self._batches.why_not_stacked()

    def stack_size(self) -> int:
        """See `Batches.stack_size`."""
        return self._batches.stack_size()

    def stacks(self, *, start: int, stop: int | None = None) -> tf.data.Dataset:
        """See `Batches.stacks`."""

        def inner(step: int, count: int | None) -> tf.data.Dataset:
            position = position_of(step, self._skipped)
            return self._batches.stacks(start=position, stop=count)

        parts = []
        for stretch in self._stretches(start, 1):
            count = len(stretch) if stop is None else min(len(stretch), stop)
            parts.append(inner(stretch.start, count))
            start, stop = stretch.stop, stop if stop is None else stop - count
        whole = inner(start, stop)
        for part in reversed(parts):
            whole = part.concatenate(whole)
        return whole

    def _stretches(self, start: int, every: int) -> Iterator[range]:
        """Yields the ranges of steps from `start` between skipped batches."""
        for number, position in enumerate(self._skipped):
            # The first step after this batch.
            end = position - number
            if end > start:
                # Rounded up: the end may lie between two steps that are taken.
                count = -(-(end - start) // every)
                yield range(start, start + count * every, every)
                start += count * every
