"""Labelled images in TFRecord files, laid out as ImageNet's usually are."""

import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import Positive, Split, Text, configurable
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
    ImageNet of TensorFlow's model garden write it. `write_image_records` makes
    such files of arrays.

    Args:
        split: `"train"` or `"eval"`.
        data_dir: holds the files; local or `gs://`.
        image_size: height and width. The shorter side is resized to it, and
            what is left of the longer one is cut off, equally at both ends.
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
    prefix = _PREFIX[split]
    form = re.compile(rf"{prefix}-(\d+)-of-(\d+)")
    try:
        names = sorted(filter(form.fullmatch, tf.io.gfile.listdir(data_dir)))
    except tf.errors.OpError as error:
        raise UserError(
            f"--data_dir={data_dir} cannot be read: {error.message}"
        ) from None
    if not names:
        raise UserError(
            f"--data_dir={data_dir} has no files named {prefix}-00000-of-00001 "
            "and so on."
        )
    _require_all(names, form, data_dir)

    def parse(record: tf.Tensor) -> Any:
        return _parse(record, image_size, num_classes)

    return RecordExamples(
        [os.path.join(data_dir, name) for name in names],
        parse,
        index=os.path.join(data_dir, f"{prefix}.index.json"),
        shuffle=split == "train",
    )


def _require_all(
    names: list[str], form: re.Pattern[str], data_dir: str
) -> None:
    """Refuses a folder from which an epoch would be less or more than one."""
    matches = [form.fullmatch(name) for name in names]
    totals = sorted({match[2] for match in matches if match})
    if len(totals) > 1:
        raise UserError(
            f"--data_dir={data_dir} mixes several sets of files: some names "
            f"end in -of-{totals[0]}, others in -of-{totals[1]}. Remove one "
            "of them."
        )
    (total,) = totals
    found = {int(match[1]) for match in matches if match}
    prefix = names[0].partition("-")[0]
    for number in range(int(total)):
        if number not in found:
            name = f"{prefix}-{number:0{len(total)}d}-of-{total}"
            raise UserError(
                f"--data_dir={data_dir} has {len(found)} of {int(total)} "
                f"files: {name} is missing."
            )
    if len(names) != int(total):
        raise UserError(
            f"--data_dir={data_dir} has {len(names)} files whose names end in "
            f"-of-{total}: {names[-1]} is none of them."
        )


def write_image_records(
    directory: str,
    split: Split,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    files: Positive = 1,
) -> list[str]:
    """Writes arrays to TFRecord files for `image_records`.

    Args:
        directory: local or `gs://`; made if it does not exist.
        split: `"train"` or `"eval"`.
        images: uint8 `[n, height, width, channels]`, of 1 or 3 channels.
        labels: integers `[n]`, from 0 on.
        files: how many files to write.

    Returns:
        Their paths.

    Raises:
        UserError: the arrays have other types or shapes.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) < files:
        raise UserError(
            f"Images are {images.dtype} {images.shape}; uint8 of shape [n, "
            f"height, width, channels] are needed, and at least {files}."
        )
    if labels.shape != images.shape[:1]:
        raise UserError(
            f"{len(images)} images have labels of shape {labels.shape}."
        )
    tf.io.gfile.makedirs(directory)
    paths = []
    for number in range(files):
        name = f"{_PREFIX[split]}-{number:05d}-of-{files:05d}"
        paths.append(os.path.join(directory, name))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for image, label in zip(
                images[number::files], labels[number::files], strict=True
            ):
                writer.write(_serialized(image, int(label)))
    return paths


def _serialized(image: np.ndarray, label: int) -> bytes:
    # PNG, so that what is read is what was given.
    encoded = tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
    number = tf.train.Int64List(value=[label + _FIRST_LABEL])
    features = {
        _IMAGE: tf.train.Feature(bytes_list=encoded),
        _LABEL: tf.train.Feature(int64_list=number),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    content: bytes = example.SerializeToString()
    return content


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
    image = _resized(tf.ensure_shape(image, [None, None, 3]), size)
    label = features[_LABEL] - _FIRST_LABEL
    # A one that is nowhere would train without a word.
    tf.debugging.assert_less(
        tf.cast(label, tf.uint64),
        tf.constant(num_classes, tf.uint64),
        f"{_LABEL} is not from 1 to {num_classes}",
    )
    return image, tf.one_hot(label, num_classes)


def _resized(image: tf.Tensor, size: int) -> tf.Tensor:
    """The middle of an image, uint8 `[size, size, 3]`."""
    shape = tf.shape(image)[:2]
    shorter = tf.reduce_min(shape)
    begin = (shape - shorter) // 2
    middle = tf.slice(
        image, tf.concat([begin, [0]], 0), tf.stack([shorter, shorter, 3])
    )
    resized = tf.image.resize(middle, [size, size])
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, 255.0), tf.uint8)
