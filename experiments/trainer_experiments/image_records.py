"""Labelled images in TFRecord files, laid out as ImageNet's usually are."""

import os
import re
from typing import Any

import keras
import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Split, Text, configurable
from trainer_experiments.models import Width
from trainer_experiments.tfrecords import RecordExamples

_PREFIX = {"train": "train", "eval": "validation"}
_IMAGE, _LABEL = "image/encoded", "image/class/label"
# The files number classes from 1; 0 is the background of other data sets.
_FIRST_LABEL = 1


@configurable(module="experiments")
def image_records(
    split: Split,
    data_dir: Text | None = None,
    *,
    image_size: Width = 256,
    num_classes: Width = 1000,
) -> RecordExamples:
    """Images and labels of `train-*-of-*` or `validation-*-of-*`.

    Each record is a `tf.train.Example` with `image/encoded`, a JPEG or PNG
    file, and `image/class/label`, an integer from 1 on, as the scripts for
    ImageNet of TensorFlow's model garden write it.

    Args:
        split: `"train"` or `"eval"`.
        data_dir: holds the files; local or `gs://`.
        image_size: height and width. The shorter side is resized to it, and the
            rest of the longer one is cut off, equally at both ends.
        num_classes: the number of classes.

    Returns:
        Images, uint8 `[n, image_size, image_size, 3]`, and labels, float32
        `[n, num_classes]`, of zeros and a one.

    Raises:
        UserError: there are no such files, some are missing, or they are
            damaged.
    """
    if data_dir is None:
        raise UserError(
            "image_records needs --data_dir=FOLDER, with files named "
            "train-00000-of-00001 and so on."
        )
    names = _names(data_dir, _PREFIX[split])

    def parse(record: tf.Tensor) -> Any:
        return _parse(record, image_size, num_classes)

    return RecordExamples(
        [os.path.join(data_dir, name) for name in names],
        parse,
        shuffle=split == "train",
    )


def _names(data_dir: str, prefix: str) -> list[str]:
    """The names of a set of files, of which an epoch is neither less nor more.

    Raises:
        UserError: there is none, or it is not complete, or not the only one.
    """
    form = re.compile(rf"{prefix}-(\d+)-of-(\d+)")
    try:
        found = map(form.fullmatch, tf.io.gfile.listdir(data_dir))
        names = {match[0]: match[2] for match in found if match}
    except tf.errors.OpError as error:
        raise UserError(
            f"--data_dir={data_dir} cannot be read: {error.message}"
        ) from None
    total = max(names.values(), default="00001")
    expected = [
        f"{prefix}-{number:0{len(total)}d}-of-{total}"
        for number in range(int(total))
    ]
    if names.keys() != set(expected):
        other = min(names.keys() ^ set(expected))
        is_there = "is none of them" if other in names else "is missing"
        raise UserError(
            f"--data_dir={data_dir} must have the {int(total)} files "
            f"{prefix}-*-of-{total} and no others: {other} {is_there}."
        )
    return expected


def _parse(record: tf.Tensor, size: int, num_classes: int) -> Any:
    features = tf.io.parse_single_example(
        record,
        {
            _IMAGE: tf.io.FixedLenFeature([], tf.string),
            _LABEL: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    # Three channels also of gray images; a GIF would have a fourth dimension.
    image = tf.io.decode_image(
        features[_IMAGE], channels=3, expand_animations=False
    )
    image = tf.ensure_shape(image, [None, None, 3])
    # The middle, of which nothing is distorted.
    image = keras.preprocessing.image.smart_resize(image, (size, size))
    image = tf.cast(tf.clip_by_value(tf.round(image), 0.0, 255.0), tf.uint8)
    label = features[_LABEL] - _FIRST_LABEL
    # A one that is nowhere would train without a word.
    tf.debugging.assert_less(
        tf.cast(label, tf.uint64),
        tf.constant(num_classes, tf.uint64),
        f"{_LABEL} is not from 1 to {num_classes}",
    )
    return image, tf.one_hot(label, num_classes)
