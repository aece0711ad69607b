"""`SteppingOver`: batches without those on which training diverged."""

from collections.abc import Collection, Iterator

import tensorflow as tf

from trainer.data.batches import Batches, endless


def position_of(step: int, skipped: Collection[int]) -> int:
    """The position of a step's batch: the `step`-th that is not skipped.

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
    """The batches of another source without some of them.

    Which batch a step takes depends only on its number and the skipped
    positions, so that a run that is started again goes on exactly. Epochs are
    still counted in steps: an epoch has as many batches as before.

    After each skipped batch, a source that is reached by reading
    (`Resume.SKIP`) is read from its beginning once more.

    Args:
        batches: where the batches come from.
        skipped: the positions, from zero, of those to leave out.
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

        # Stretches without a skipped batch, one after the other; the last one
        # is endless.
        stretches = list(self._stretches(start, every))
        whole = inner(stretches[-1].stop) if stretches else inner(start)
        for stretch in reversed(stretches):
            count = len(stretch) * micro * len(replicas)
            whole = inner(stretch.start).take(count).concatenate(whole)
        return endless(whole)

    def _stretches(self, start: int, every: int) -> Iterator[range]:
        """The steps to take from `start` on, up to each skipped batch."""
        for number, position in enumerate(self._skipped):
            # The first step after this batch: positions count the skipped
            # batches before it, steps do not.
            end = position - number
            if end > start:
                # Rounded up: the stride goes on across the skipped batch.
                count = -(-(end - start) // every)
                yield range(start, start + count * every, every)
                start += count * every
