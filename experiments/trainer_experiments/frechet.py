"""The Fréchet distance between two sets of images."""

from typing import Any

import keras
from keras import ops


class FrechetDistance(keras.metrics.Metric):
    """Between normal distributions of the mean and covariance of two sets.

    As the Fréchet inception distance, but of the pixels of thumbnails: it
    needs no network. Its state is sums, so that it is exact under every
    strategy.

    Args:
        shape: height, width and channels of the images.
        pool: height and width of the squares that make a thumbnail's pixel.
        name: of the metric.
        **kwargs: see `keras.metrics.Metric`.
    """

    def __init__(
        self,
        *,
        shape: tuple[int, int, int],
        pool: int,
        name: str = "frechet_distance",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool = pool
        width = (shape[0] // pool) * (shape[1] // pool) * shape[2]
        self.count = self.add_weight((), "zeros", name="count")
        self._sums = [
            self.add_weight(size, "zeros", name=name)
            for size in ((width,), (width, width))
            for name in ("real", "made")
        ]

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds images, float `[batch, height, width, channels]`."""
        sides = [self._thumbnails(one) for one in (y_true, y_pred)]
        rows = ops.ones((ops.shape(sides[0])[0], 1), self.dtype)
        if sample_weight is not None:
            rows *= ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        self.count.assign_add(ops.sum(rows))
        sums = [ops.sum(rows * one, axis=0) for one in sides]
        sums += [ops.matmul(ops.transpose(rows * one), one) for one in sides]
        for own, value in zip(self._sums, sums, strict=True):
            own.assign_add(value)

    def result(self) -> Any:
        """The squared distance of the means and of the deviations."""
        count = ops.maximum(self.count, 1.0)
        means = [one / count for one in self._sums[:2]]
        real, made = (
            one / count - ops.outer(mean, mean)
            for one, mean in zip(self._sums[2:], means, strict=True)
        )
        root = _root(real)
        # Of a product of symmetric matrices, made symmetric.
        both = _root(ops.matmul(ops.matmul(root, made), root))
        return (
            ops.sum(ops.square(means[0] - means[1]))
            + ops.trace(real)
            + ops.trace(made)
            - 2.0 * ops.trace(both)
        )

    def _thumbnails(self, images: Any) -> Any:
        images = ops.cast(images, self.dtype)
        small = ops.average_pool(images, self.pool, self.pool)
        return ops.reshape(small, (-1, self._sums[0].shape[0]))


def _root(matrix: Any) -> Any:
    """The square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = ops.eigh(matrix)
    roots = ops.sqrt(ops.maximum(values, 0.0))
    return ops.matmul(vectors * roots, ops.transpose(vectors))
