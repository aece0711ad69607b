"""Reads the IDX format in which MNIST is published."""

import gzip
import math
import os
import struct
import zlib

import numpy as np

from trainer import UserError
from trainer.plugin_api import files

_UNSIGNED_BYTE = 0x08  # The code of the type of elements, in the third byte.


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
    path = _find(directory, name)
    content = _read(path)
    # Two zeros, the type of elements and the number of dimensions.
    magic = content[:4]
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE:
        raise UserError(
            f"{path} is not an IDX file of bytes: it begins with "
            f"{magic.hex() or 'nothing'}, not with 000008."
        )
    if magic[3] != rank:
        raise UserError(
            f"{path} has {magic[3]} dimensions, expected {rank}: is it "
            "another file under this name?"
        )
    # Then the size of each dimension, a big-endian 32-bit number.
    header = 4 + 4 * rank
    if len(content) < header:
        raise UserError(f"{path} is cut short within its header.")
    shape = struct.unpack(f">{rank}I", content[4:header])
    expected = math.prod(shape)
    if len(content) - header != expected:
        raise UserError(
            f"{path} is damaged: its header promises {expected} bytes "
            f"{shape}, but it holds {len(content) - header}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _find(directory: str, name: str) -> str:
    try:
        for candidate in (f"{name}.gz", name):
            path = os.path.join(directory, candidate)
            if files.exists(path):
                return path
    except OSError as error:
        raise UserError(
            f"--data_dir={directory} cannot be read: {error}"
        ) from None
    raise UserError(
        f"--data_dir={directory} holds neither {name}.gz nor {name}."
    )


def _read(path: str) -> bytes:
    try:
        content = files.read(path)
        return gzip.decompress(content) if path.endswith(".gz") else content
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read: {reason}") from None
