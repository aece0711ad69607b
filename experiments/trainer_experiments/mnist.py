"""MNIST: from files, or downloaded by Keras."""

import gzip
import math
import struct
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import ArrayExamples, UserError
from trainer.plugin_api import Split, Text, configurable, files

_PREFIX = {"train": "train", "eval": "t10k"}
_CLASSES = 10
_UNSIGNED_BYTE = 0x08  # Code of the type of elements, in the third byte.


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


def read_idx(directory: str, name: str, *, rank: int) -> np.ndarray:
    """Reads an IDX file of unsigned bytes, compressed by gzip or not.

    Args:
        directory: local, or anything TensorFlow reads, such as `gs://...`.
        name: the file's name without `.gz`.
        rank: how many dimensions the array must have.

    Returns:
        A uint8 array.

    Raises:
        UserError: the file is missing, cut short, damaged or of another
            format.
    """
    path, content = _content(directory, name)
    # Two zeros, the type of elements and the number of dimensions; then the
    # size of each dimension, a big-endian 32-bit number.
    magic, header = bytes([0, 0, _UNSIGNED_BYTE, rank]), 4 + 4 * rank
    if content[:4] != magic or len(content) < header:
        raise UserError(
            f"{path} is not an IDX file of bytes in {rank} dimensions: it "
            f"begins with {content[:4].hex() or 'nothing'}, not with "
            f"{magic.hex()} and {rank} sizes."
        )
    shape = struct.unpack(f">{rank}I", content[4:header])
    expected = math.prod(shape)
    if len(content) - header != expected:
        raise UserError(
            f"{path} is damaged: its header promises {expected} bytes "
            f"{shape}, but it holds {len(content) - header}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(directory: str, name: str) -> tuple[str, bytes]:
    """The path of the file that is there, and its content, uncompressed."""
    path = directory
    try:
        for path in (f"{directory}/{name}.gz", f"{directory}/{name}"):
            if files.exists(path):
                content = files.read(path)
                is_gzip = path.endswith(".gz")
                return path, gzip.decompress(content) if is_gzip else content
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read: {reason}") from None
    raise UserError(
        f"--data_dir={directory} holds neither {name}.gz nor {name}."
    )
