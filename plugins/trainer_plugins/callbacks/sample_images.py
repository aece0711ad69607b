"""The callback SampleImages: images of the eval split, and what comes out."""

from typing import Any

import keras
import numpy as np

from trainer import Callback, UserError
from trainer.plugin_api import Positive, configurable


@configurable(module="trainer_plugins.callbacks")
class SampleImages(Callback):
    """Logs the first images of the eval split, and the model's for them.

    After each evaluation, `inputs` are the images that the model was given, and
    `outputs` those that it makes, as an autoencoder does. Whatever of the two
    is not of the shape `[batch, height, width, channels]`, with 1, 3 or 4
    channels, is left out. Values are stretched: the least one of them all is
    black, the greatest one white.

    Args:
        count: how many images, but at most those of one batch.
    """

    def __init__(self, count: Positive = 8) -> None:
        super().__init__()
        self._count = count

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Logs the images.

        Raises:
            UserError: neither inputs nor outputs are images.
        """
        batches = self.trainer.batches(self.trainer.evaluated_split)
        batch = next(iter(batches.whole(0)))
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = keras.tree.map_structure(
            lambda part: np.asarray(part)[: self._count], inputs
        )
        found = {
            "inputs": inputs,
            "outputs": self.trainer.predict(inputs),
        }
        images = {n: one for n, one in found.items() if _is_image(one)}
        if not images:
            raise UserError(
                "SampleImages finds no images: neither inputs nor outputs of "
                "the model have the shape [batch, height, width, channels]."
            )
        for name, values in images.items():
            self.trainer.log(name, _stretched(values), kind="image")


def _is_image(values: Any) -> bool:
    shape: tuple[int, ...] = getattr(values, "shape", ())
    return len(shape) == 4 and shape[-1] in (1, 3, 4)


def _stretched(values: np.ndarray) -> np.ndarray:
    numbers = np.nan_to_num(np.asarray(values, np.float32))
    least, most = numbers.min(), numbers.max()
    # NumPy's clip: the division may give a little more than 1.
    stretched = np.clip((numbers - least) / max(most - least, 1e-12), 0.0, 1.0)
    return np.round(stretched * 255).astype(np.uint8)
