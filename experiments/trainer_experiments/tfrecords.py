"""TFRecord files with random access: one seek for each record.

A TFRecord file is a sequence of records: the length (8 bytes), its checksum
(4), the content, and its checksum (4). At the start all files are read through,
for the offsets of their records.
"""

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import Examples, UserError
from trainer.plugin_api import files

_LENGTH = struct.Struct("<Q")
# A record is its content and this many bytes: its length and two checksums.
_AROUND = _LENGTH.size + 4 + 4
# Of remote files, where a request takes a while.
_THREADS = 32
# Records that are read at once for a batch.
_READS = 64
_RECORD = tf.TensorSpec([], tf.string)


class RecordExamples(Examples):
    """The records of TFRecord files, by number.

    TensorFlow checks a record's checksums when it reads it.

    Args:
        files: paths, local or others that TensorFlow reads, such as `gs://`.
        parse: turns a serialized record, a string scalar, into an example. It
            is called inside a `tf.data` graph, and returns static shapes.
        shuffle: whether training shuffles the records.

    Raises:
        UserError: a file cannot be read, is cut short or is not of this
            format, or there is no record.
    """

    def __init__(
        self,
        files: Sequence[str],
        parse: Callable[[tf.Tensor], Any],
        *,
        shuffle: bool = True,
    ) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            offsets = list(pool.map(find_offsets, files))
        counts = [len(one) for one in offsets]
        self.size = sum(counts)
        self.shuffle = shuffle
        if not self.size:
            raise UserError(f"There is no record in {', '.join(files)}.")
        self._parse = parse
        # On the host under any strategy, where the input pipeline runs.
        with tf.device("CPU:0"):
            self._files = tf.constant(list(files))
            self._file_of = tf.constant(
                np.repeat(np.arange(len(files)), counts), tf.int32
            )
            self._offsets = tf.constant(np.concatenate(offsets), tf.int64)
        traced = tf.function(parse).get_concrete_function(_RECORD)
        self._specs = tf.nest.map_structure(
            lambda one: tf.TensorSpec(one.shape, one.dtype),
            traced.structured_outputs,
        )

    def gather(self, numbers: tf.Tensor) -> Any:
        """See `Examples.gather`."""
        # Also of no records at all: a replica's last batch may be empty.
        return tf.map_fn(
            self._read,
            numbers,
            parallel_iterations=_READS,
            fn_output_signature=self._specs,
        )

    def _read(self, number: tf.Tensor) -> Any:
        # A dataset of the file's records from this one on. The class
        # `TFRecordDataset` has no argument for where to start.
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(self._files, tf.gather(self._file_of, number)),
            compression_type="",
            buffer_size=0,
            byte_offsets=tf.gather(self._offsets, number),
        )
        dataset = tf.data.experimental.from_variant(records, _RECORD)
        return self._parse(dataset.take(1).get_single_element())


def find_offsets(path: str) -> list[int]:
    """Reads through a TFRecord file, from length to length.

    Returns:
        Where each record begins, in bytes.

    Raises:
        UserError: the file cannot be read, is cut short or is not of this
            format.
    """
    found = []
    try:
        with files.os_errors() as gfile, _open(path) as file:
            size = gfile.stat(path).length
            position = 0
            while position < size:
                found.append(position)
                file.seek(position)
                header = file.read(_LENGTH.size).ljust(_LENGTH.size, b"\xff")
                position += _LENGTH.unpack(header)[0] + _AROUND
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if position != size:
        raise UserError(
            f"{path} is not a TFRecord file, or is cut short: a record that "
            f"begins at byte {found[-1]} would end at {position}, and the "
            f"file ends at {size}."
        )
    return found


def _open(path: str) -> Any:
    if files.is_local(path):
        # A buffer would read most of the file, for eight bytes of each record.
        return open(path, "rb", buffering=0)
    return tf.io.gfile.GFile(path, "rb")
