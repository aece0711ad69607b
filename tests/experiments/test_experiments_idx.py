import gzip
import struct

import numpy as np
import pytest

from trainer import UserError
from trainer_experiments.mnist import read_idx

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
HEADER = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4)
CONTENT = HEADER + VALUES.tobytes()


@pytest.mark.parametrize("name", ["digits", "digits.gz"])
def test_reads_plain_and_compressed(tmp_path, name):
    packed = (
        gzip.compress(CONTENT, mtime=0) if name.endswith(".gz") else CONTENT
    )
    (tmp_path / name).write_bytes(packed)
    found = read_idx(str(tmp_path), "digits", rank=3)
    np.testing.assert_array_equal(found, VALUES)
    assert found.dtype == np.uint8


def damaged_crc():
    packed = bytearray(gzip.compress(CONTENT, mtime=0))
    packed[-8] ^= 1
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("digits", b"", "begins with nothing"),
        (
            "digits",
            b"\0\0\x0d" + CONTENT[3:],
            "not an IDX file of bytes in 3 dimensions",
        ),
        (
            "digits",
            b"\0\0\x08\x01" + CONTENT[4:],
            "begins with 00000801, not with 00000803",
        ),
        ("digits", CONTENT + b"\0", "promises 24 bytes .*holds 25"),
        ("digits.gz", gzip.compress(CONTENT, mtime=0)[:-12], "cannot be read"),
        ("digits.gz", CONTENT, "cannot be read: Not a gzipped file"),
        ("digits.gz", damaged_crc(), "cannot be read: CRC check failed"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(str(tmp_path), "digits", rank=3)
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError) as caught:
        read_idx(str(tmp_path), "digits", rank=3)
    assert str(caught.value) == (
        f"--data_dir={tmp_path} holds neither digits.gz nor digits."
    )
