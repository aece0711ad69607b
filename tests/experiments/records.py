"""Writes arrays to TFRecord files for `image_records`."""

import tensorflow as tf


def write_image_records(directory, split, images, labels, *, files=1):
    tf.io.gfile.makedirs(str(directory))
    prefix = {"train": "train", "eval": "validation"}[split]
    paths = []
    for number in range(files):
        paths.append(f"{directory}/{prefix}-{number:05d}-of-{files:05d}")
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for image, label in zip(
                images[number::files], labels[number::files], strict=True
            ):
                example = tf.train.Example()
                feature = example.features.feature
                encoded = tf.io.encode_png(image).numpy()
                feature["image/encoded"].bytes_list.value.append(encoded)
                number_of = feature["image/class/label"].int64_list
                number_of.value.append(int(label) + 1)
                writer.write(example.SerializeToString())
    return paths
