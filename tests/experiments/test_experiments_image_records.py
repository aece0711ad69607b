import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.experiments.records import write_image_records
from trainer import UserError
from trainer_experiments.image_records import image_records

SIZE, CLASSES = 12, 5


def write(folder, split="train", *, count=7, files=2, channels=3, size=SIZE):
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, size, size, channels), np.uint8)
    labels = np.arange(count) % CLASSES
    paths = write_image_records(str(folder), split, images, labels, files=files)
    # The order in which files and their records are numbered.
    order = np.concatenate([np.arange(count)[n::files] for n in range(files)])
    return images[order], labels[order], paths


def read(folder, split="train", **options):
    options = {"image_size": SIZE, "num_classes": CLASSES} | options
    return image_records(split, data_dir=str(folder), **options)


@pytest.mark.parametrize("channels", [1, 3])
def test_any_record_is_what_was_written(tmp_path, channels):
    images, labels, _ = write(tmp_path, channels=channels)
    examples = read(tmp_path)
    assert (examples.size, examples.shuffle) == (7, True)
    numbers = [6, 0, 4, 4, 3]
    x, y = examples.gather(tf.constant(numbers, tf.int64))
    assert (x.dtype, y.dtype) == (tf.uint8, tf.float32)
    expected = np.broadcast_to(images[numbers], (5, SIZE, SIZE, 3))
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, np.eye(CLASSES)[labels[numbers]])
    # A replica's last piece may be empty, and its shape must still be known.
    traced = tf.function(
        examples.gather, input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    x, y = traced(tf.constant([], tf.int64))
    assert (x.shape, y.shape) == ((0, SIZE, SIZE, 3), (0, CLASSES))
    spec = traced.get_concrete_function().structured_outputs[0].shape
    assert spec[1:] == (SIZE, SIZE, 3)


def test_what_is_cut_short_or_damaged(tmp_path):
    *_, (path,) = write(tmp_path, files=1)
    path = pathlib.Path(path)
    whole = path.read_bytes()
    for size in (len(whole) - 1, 5):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="00000-of-00001 is not a TFRecord"):
            read(tmp_path)
    path.write_bytes(whole[:-20] + b"?" + whole[-19:])
    examples = read(tmp_path)
    examples.gather(tf.constant([5], tf.int64))
    with pytest.raises(tf.errors.DataLossError):
        examples.gather(tf.constant([6], tf.int64))


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="needs --data_dir=FOLDER"):
        image_records("train")
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "nothing")
    write(tmp_path)
    with pytest.raises(UserError, match="validation-00000-of-00001 is missing"):
        read(tmp_path, "eval")
    with pytest.raises(tf.errors.InvalidArgumentError, match="from 1 to 3"):
        read(tmp_path, num_classes=3).gather(tf.range(7, dtype=tf.int64))
