"""MNIST: from files, or downloaded by Keras."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import ArrayExamples, UserError
from trainer.plugin_api import Split, Text, configurable
from trainer_experiments.idx import read_idx

_PREFIX = {"train": "train", "eval": "t10k"}
_CLASSES = 10


@configurable(module="experiments")
def mnist(split: Split, data_dir: Text | None = None) -> ArrayExamples:
    """Handwritten digits of 28x28 pixels (LeCun, Cortes and Burges, 1998).

    Args:
        split: `"train"` or `"eval"`.
        data_dir: holds the four IDX files (`train-images-idx3-ubyte`,
            `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`,
            `t10k-labels-idx1-ubyte`, each with or without `.gz`); local or
            `gs://`. Without it Keras downloads them.

    Returns:
        Images, float32 `[n, 28, 28, 1]` in [0, 1], and labels, int32 `[n]`.
        In memory, images stay bytes.

    Raises:
        UserError: files are missing or damaged, or the
            download failed.
    """
    if data_dir is None:
        images, labels = _download(split)
    else:
        images, labels = _read(data_dir, split)
    return ArrayExamples(
        (images[..., np.newaxis], labels.astype(np.int32)),
        shuffle=split == "train",
        transform=_to_float,
    )


# Batch by batch: as float32 the images would take four times the memory.
def _to_float(images: tf.Tensor, labels: tf.Tensor) -> Any:
    return tf.cast(images, tf.float32) / 255.0, labels


def _read(data_dir: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    prefix = _PREFIX[split]
    images = read_idx(data_dir, f"{prefix}-images-idx3-ubyte", rank=3)
    labels = read_idx(data_dir, f"{prefix}-labels-idx1-ubyte", rank=1)
    if len(images) != len(labels):
        raise UserError(
            f"--data_dir={data_dir}: {prefix} has {len(images)} images but "
            f"{len(labels)} labels."
        )
    if labels.size and labels.max() >= _CLASSES:
        raise UserError(
            f"--data_dir={data_dir}: {prefix}-labels-idx1-ubyte holds the "
            f"label {labels.max()}; valid are 0 to {_CLASSES - 1}."
        )
    return images, labels


def _download(split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        train, test = keras.datasets.mnist.load_data()
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"MNIST cannot be downloaded: {reason}.\nPut its four IDX files "
            "(train-images-idx3-ubyte.gz, ...) in a folder and name it with "
            "--data_dir=FOLDER."
        ) from None
    return train if split == "train" else test
