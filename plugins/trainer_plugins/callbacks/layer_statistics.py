"""The callback LayerStatistics: gradients and weights, variable by variable."""

import re
from typing import Any

import keras
import numpy as np

from trainer import Callback, UserError
from trainer.plugin_api import Media, Positive, configurable, histogram


@configurable(module="trainer_plugins.callbacks")
class LayerStatistics(Callback):
    """Logs norms and histograms of gradients and weights every few steps.

    For each trainable variable, by its path in the model, the numbers such as
    `gradient_norm/dense/kernel` and `weight_norm/dense/kernel`, and the
    histograms `gradients/dense/kernel` and `weights/dense/kernel`. Gradients
    are those of the global batch that the step applies, before clipping;
    weights are those after it. Of embeddings only the gradients of the rows
    that the batch looked up are in the histogram.

    Args:
        every: the period, in steps.
        histograms: whether to log them, too.
    """

    single = True

    def __init__(self, every: Positive = 100, histograms: bool = True) -> None:
        super().__init__()
        self._every = every
        self._histograms = histograms
        self._statistics: Any = None

    def setup(self) -> None:
        """Lets the steps measure their gradients.

        Raises:
            UserError: the strategy has no gradient of a global batch.
        """
        if not self.trainer.plugin.options.batches_by_step:
            raise UserError(
                "LayerStatistics cannot measure gradients under "
                f"{self.trainer.plugin.name}: each worker applies its own, and "
                "none is that of a step. Leave it out of run.callbacks."
            )
        self._statistics = self.trainer.measure_gradients(self._every)

    def close(self) -> None:
        """Steps of a later call measure no gradients."""
        if self._statistics is not None:
            self.trainer.measure_gradients(None)
            self._statistics = None

    def next_due(self, step: int) -> int:
        """See `Callback.next_due`."""
        return (step // self._every + 1) * self._every

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Logs, if the step is due."""
        if self.trainer.step % self._every:
            return
        for variable in self.trainer.model.trainable_variables:
            path = variable.path.removeprefix(f"{self.trainer.model.name}/")
            name = re.sub(r"[^\w\-./ ]", "_", path, flags=re.ASCII)
            norm, buckets = self._statistics.read(variable)
            self._log("gradient", name, norm, buckets)
            weights = np.asarray(
                keras.ops.convert_to_numpy(variable), np.float32
            )
            size = float(np.linalg.norm(weights.ravel()))
            self._log("weight", name, size, histogram(weights))

    def _log(
        self, kind: str, name: str, norm: float, buckets: np.ndarray
    ) -> None:
        self.trainer.log(f"{kind}_norm/{name}", norm)
        if self._histograms and len(buckets):
            self.trainer.log(f"{kind}s/{name}", Media("histogram", buckets))
