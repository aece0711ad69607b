"""TFRecord files with random access: one seek for each record.

A TFRecord file is a sequence of records: the length (8 bytes), its checksum
(4), the content, and its checksum (4). The files are read through once for the
offsets of their records, which are kept in a file beside them.
"""

import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer import Examples, UserError
from trainer.plugin_api import files, write_whole

_LENGTH = struct.Struct("<Q")
_CHECKSUM_BYTES = 4
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
        index: where the offsets are kept, beside the files; made if necessary.
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
        index: str,
        shuffle: bool = True,
    ) -> None:
        offsets = _offsets(files, index)
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
        # Also of no records at all: the last piece of an epoch may be empty.
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


def find_offsets(path: str) -> np.ndarray:
    """Reads through a TFRecord file, from length to length.

    Returns:
        Where each record begins, int64 `[records]`, in bytes.

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
                header = file.read(_LENGTH.size)
                if len(header) < _LENGTH.size:
                    break
                (length,) = _LENGTH.unpack(header)
                position += _LENGTH.size + length + 2 * _CHECKSUM_BYTES
                if position < size:
                    file.seek(position)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if position != size:
        raise UserError(
            f"{path} is not a TFRecord file, or is cut short: a record that "
            f"begins at byte {found[-1]} would end at {position}, and the "
            f"file ends at {size}."
        )
    return np.asarray(found, np.int64)


def _open(path: str) -> Any:
    if _is_remote(path):
        return tf.io.gfile.GFile(path, "rb")
    # A buffer would read most of the file, for eight bytes of each record.
    return open(path, "rb", buffering=0)


def _is_remote(path: str) -> bool:
    return "://" in path


def _offsets(paths: Sequence[str], index: str) -> list[np.ndarray]:
    """The offsets of the records of each file, from the index if it fits."""
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            versions = list(pool.map(_version, paths))
        except OSError as error:
            raise UserError(f"Data cannot be read: {error}") from None
        names = [os.path.basename(path) for path in paths]
        described = [
            [name, *version]
            for name, version in zip(names, versions, strict=True)
        ]
        found = _load(index, described)
        if found is None:
            logging.info("Looking for the records of %d files.", len(paths))
            found = list(pool.map(find_offsets, paths))
            _store(index, described, found)
    return found


def _version(path: str) -> tuple[int, int]:
    """A file's size in bytes, and when it was written, in nanoseconds."""
    if _is_remote(path):
        with files.os_errors() as gfile:
            found = gfile.stat(path)
            return found.length, found.mtime_nsec
    # TensorFlow's of a local file only counts whole seconds.
    local = os.stat(path)
    return local.st_size, local.st_mtime_ns


def _load(index: str, described: list[Any]) -> list[np.ndarray] | None:
    """The offsets in an index; `None` if it is not of these files."""
    try:
        stored, checksum = files.read_json(index)
        if checksum != _checksum(stored) or stored[0] != described:
            return None
        return [np.asarray(one, np.int64) for one in stored[1]]
    # Whatever is wrong with it, it is made again.
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _store(index: str, described: list[Any], offsets: list[np.ndarray]) -> None:
    stored = [described, [one.tolist() for one in offsets]]
    try:
        write_whole(index, json.dumps([stored, _checksum(stored)]))
    except OSError as error:
        # The folder may well be read-only; this run has the offsets.
        logging.warning(
            "%s cannot be written, so the next run reads through all files "
            "again: %s",
            index,
            error,
        )


def _checksum(stored: Any) -> int:
    return zlib.crc32(json.dumps(stored).encode())
