"""The callback ConfusionMatrix: which classes are taken for which."""

from typing import Any

import keras
import numpy as np

from trainer import Callback, UserError
from trainer.plugin_api import Positive, configurable

_LARGEST = 256  # Pixels of the image, about.


@configurable(module="trainer_plugins.callbacks")
class ConfusionMatrix(Callback):
    """Logs the confusion matrix of the eval split after each evaluation.

    For a model with one output, which has a column for each class, and targets
    that are class numbers or one-hot vectors. The image `confusion image` has a
    row for each true class and a column for each predicted one; a white cell is
    all of its row. With up to 32 classes, the text `confusion table` has the
    counts.

    It predicts the split once more, on one device: each example counts once
    under every strategy, without sample weights and masks.

    Args:
        batches: how many batches of the eval split, but at most all; `None`
            means all.
    """

    def __init__(self, batches: Positive | None = None) -> None:
        super().__init__()
        self._batches = batches

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Predicts the split, and logs the matrix.

        Raises:
            UserError: outputs or targets are not those of classes.
        """
        counts = self.counts()
        if len(counts) <= 32:
            self.trainer.log("confusion table", _table(counts))
        # An empty row stays black.
        totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
        cell = max(1, _LARGEST // len(counts))
        image = np.kron(counts / totals, np.ones((cell, cell)))
        self.trainer.log("confusion image", image, kind="image")

    def counts(self) -> np.ndarray:
        """The matrix: int64 of shape `[classes, classes]`, true by predicted.

        Raises:
            UserError: outputs or targets are not those of classes.
        """
        split = self.trainer.evaluated_split
        batches = self.trainer.batches(split)
        data = batches.whole(0)
        length = self._batches or batches.steps_per_epoch
        if length is None:
            raise UserError(
                f"The {split} split is endless, or its length is not known: "
                "set ConfusionMatrix.batches."
            )
        data = data.take(length)
        outputs = self.trainer.predict(data)
        targets = [
            np.asarray(keras.utils.unpack_x_y_sample_weight(batch)[1])
            for batch in data
        ]
        return _counts(np.concatenate(targets), outputs)


def _counts(targets: np.ndarray, outputs: Any) -> np.ndarray:
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2 or shape[1] < 2:
        raise UserError(
            "ConfusionMatrix needs one output of shape [batch, classes], with "
            f"two classes at least, and the model's has the shape {shape}."
        )
    if targets.shape == shape:
        targets = targets.argmax(axis=1)
    if targets.size != len(outputs) or targets.dtype.kind not in "biuf":
        raise UserError(
            "ConfusionMatrix needs targets that are class numbers or one-hot "
            f"vectors, not of {targets.dtype} and shape {targets.shape}."
        )
    classes = shape[1]
    true = targets.ravel().astype(np.int64)
    predicted = outputs.argmax(axis=1)
    pairs = np.bincount(true * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes)


def _table(counts: np.ndarray) -> str:
    """The counts as a table in Markdown."""
    numbers = range(len(counts))
    lines = [
        "| true \\ predicted | " + " | ".join(map(str, numbers)) + " |",
        "|---" * (len(counts) + 1) + "|",
        *(
            f"| **{i}** | " + " | ".join(map(str, counts[i])) + " |"
            for i in numbers
        ),
    ]
    return "\n".join(lines)
