import gzip
import pathlib
import struct

import numpy as np
import pytest
import tensorflow as tf

from trainer import UserError
from trainer_experiments.mnist import mnist


def write(folder, *, prefix="train", images=3, labels=(0, 5, 9), size=28):
    pixels = np.arange(images * size * size) % 256
    pathlib.Path(folder, f"{prefix}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x00000803, images, size, size)
        + pixels.astype(np.uint8).tobytes()
    )
    pathlib.Path(folder, f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x00000801, len(labels)) + bytes(labels)
    )
    return pixels


@pytest.mark.parametrize(
    ("split", "prefix", "size"),
    [("train", "train", 8000), ("eval", "t10k", 2000)],
)
def test_real_digits(mnist_dir, split, prefix, size):
    examples = mnist(split, data_dir=mnist_dir)
    assert examples.size == size
    assert examples.shuffle == (split == "train")
    images, labels = examples.gather(tf.range(size, dtype=tf.int64))

    def values(name, skip):
        path = pathlib.Path(mnist_dir, f"{prefix}-{name}-ubyte.gz")
        return np.frombuffer(gzip.decompress(path.read_bytes())[skip:], "u1")

    np.testing.assert_array_equal(
        np.round(images.numpy().ravel() * 255), values("images-idx3", 16)
    )
    np.testing.assert_array_equal(labels, values("labels-idx1", 8))


def test_labels_must_be_digits(tmp_path):
    write(tmp_path, labels=(0, 10, 3))
    with pytest.raises(UserError, match="label 10; valid are 0 to 9"):
        mnist("train", data_dir=str(tmp_path))
