"""Writes and reads checkpoint directories: complete or absent, never torn.

    checkpoints/step_00000100/
        arrays.index, arrays.data-...   a TensorFlow checkpoint of the arrays
        state.json                      everything that is not an array
        manifest.json                   size and SHA-256 of each file above

A checkpoint is written under a temporary name (`tmp_...`), synchronized to
disk and renamed. A checkpoint whose manifest is missing or does not match is
skipped. Saving a step again first renames the old checkpoint to
`step_00000100.old`, which is valid until the new one has its name.
`tf.train.load_checkpoint(".../step_00000100/arrays")` reads the arrays.

An object store such as `gs://` renames a directory object by object, so a
checkpoint gets its final name at once there, and nothing is renamed: the
manifest, which makes it valid, is written last and deleted first. A step that
is saved again gets the other one of its two names, and then loses the first.

Writing and reading stay in one file: they agree on every name and rename.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer.checkpoint.contents import Snapshot, check
from trainer.errors import UserError
from trainer.runtime import files, schema
from trainer.runtime.files import is_local, remove_if_possible
from trainer.runtime.run_paths import CHECKPOINT_NAME as _NAME

_MANIFEST, _OLD = "manifest.json", ".old"
# TensorFlow writes all arrays of one SaveV2 operation to one data file.
_DATA = "arrays.data-00000-of-00001"
_FILES = {"state.json", "arrays.index", _DATA}
_CHUNK = 1 << 20
FORMAT = 2
_STATE = schema.record({"step": schema.Count, "format": schema.Count})
# What TensorFlow takes for a glob pattern.
_PATTERN = re.compile(r"[\[\]*?\\{}]")
# Errors that invalid content causes when it is read.
_CONTENT_ERRORS = (
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    tf.errors.OpError,
)
_DISK_ERRORS = (
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
# A file is not there; another error says that it cannot be read now.
_ABSENT = (FileNotFoundError, NotADirectoryError, files.NotAFile)


class OtherFormat(UserError):
    """A checkpoint was written by a different version of the trainer.

    It is not skipped like a damaged one.
    """


def save(directory: str, snapshot: Snapshot) -> str:
    """Writes a checkpoint; readers see all of it or nothing.

    Args:
        directory: holds the run's checkpoints; made if it does not exist.
        snapshot: what to write. Its tensors are not changed.

    Returns:
        The checkpoint's path.

    Raises:
        OSError: the file system refused; nothing that was there before is
            lost.
    """
    final = os.path.join(directory, f"step_{snapshot.step:08d}")
    files.refuse_link(directory)
    files.make_directory(directory)
    with files.os_errors():
        if is_local(directory):
            _save_and_rename(final, snapshot)
        else:
            _save_in_place(final, snapshot)
    return final


def _save_and_rename(final: str, snapshot: Snapshot) -> None:
    directory = os.path.dirname(final)
    # A name that no other process uses, and that is not a checkpoint's.
    temporary = os.path.join(directory, f"tmp_{uuid.uuid4().hex}")
    try:
        # Fails if the name exists, unlike makedirs.
        os.mkdir(temporary)
        _write(temporary, snapshot)
        # An earlier save may have been killed between its two renames.
        _settle_old(directory)
        files.replace_directory(temporary, final, last=_MANIFEST)
    except BaseException:  # Also when the process is interrupted.
        remove_if_possible(temporary)
        raise


def _save_in_place(final: str, snapshot: Snapshot) -> None:
    path, other = final, f"{final}{_OLD}"
    # What is valid there may be the run's only checkpoint: it goes once the
    # new one is valid under another name.
    if find_fault(final) is None:
        path, other = other, path
    try:
        remove(path)
        files.make_directory(path)
        _write(path, snapshot)
    except BaseException:  # Also when the process is interrupted.
        remove_if_possible(path)
        raise
    with contextlib.suppress(OSError):
        remove(other)


def load(path: str) -> Snapshot:
    """Reads a checkpoint.

    Args:
        path: the directory of one checkpoint.

    Raises:
        UserError: it is not complete; the message says what is wrong.
        OtherFormat: it is complete, but this version cannot read it.
        OSError: it cannot be read at the moment.
    """
    fault = find_fault(path)
    if fault is None:
        try:
            return _read(path)
        except OtherFormat:
            raise
        # What is read is what was written: it is the disk that fails.
        except _DISK_ERRORS as error:
            raise OSError(errno.EIO, error.message, path) from error
        except _CONTENT_ERRORS as error:
            fault = f"it cannot be read ({error})"
    raise UserError(f"{path} is not a usable checkpoint: {fault}.")


def load_newest(directory: str) -> Snapshot | None:
    """Reads the newest usable checkpoint; `None` if there is none.

    Damaged ones are skipped, with a warning.
    """
    return next(newest_first(directory), None)


def newest_first(directory: str) -> Iterator[Snapshot]:
    """Reads usable checkpoints one by one, the newest first.

    Damaged ones are skipped, with a warning.

    Raises:
        UserError: there are some, and all of them are damaged, or this user
            may not read them.
        OtherFormat: one was written by another version. Passing it over would
            lose what that version has done.
        StartAgain: one cannot be read at the moment. Passing it over would
            lose what the run has done since an older one.
    """
    damaged, found = [], False
    try:
        for path in reversed(listing(directory)):
            if not is_local(path) and not files.exists(f"{path}/{_MANIFEST}"):
                continue  # It is being written, or its writer was killed.
            try:
                snapshot = load(path)
            except OtherFormat:
                raise
            except UserError as error:
                logging.warning("Skipping a checkpoint. %s", error)
                damaged.append(str(error))
            else:
                if damaged or found:
                    logging.warning("Continuing from step %d.", snapshot.step)
                found = True
                yield snapshot
    except OSError as error:
        raise files.cannot(f"{directory} cannot be read", error) from error
    if damaged and not found:
        # From step 0, the run would overwrite what it has done.
        raise UserError(
            f"None of the checkpoints in {directory} can be used "
            f"({len(damaged)} damaged). {damaged[0]} Restore a copy of one, or "
            "choose another --model_dir; to begin at step 0 here, remove them."
        )


def load_newer(directory: str, than: int) -> Snapshot | None:
    """Reads the newest complete checkpoint of a run that is in progress.

    The run may delete a checkpoint while it is read here, and on an object
    store a checkpoint appears file by file: these are skipped silently.

    Args:
        directory: holds the run's checkpoints; it need not exist yet.
        than: only later steps count.
    """
    for path in reversed(listing(directory)):
        if step_of(path) <= than:
            break
        try:
            return load(path)
        except OtherFormat:
            raise
        except (UserError, OSError) as error:
            logging.info("Skipping %s: %s", path, error)
    return None


def listing(directory: str) -> list[str]:
    """The checkpoints' paths, oldest first, without looking into them."""
    # By number, not by name: from step 10**8 on names have nine digits. An old
    # one comes before the new one of the same step.
    found = sorted(
        filter(_NAME.fullmatch, files.listing(directory)),
        key=lambda name: (step_of(name), not name.endswith(_OLD)),
    )
    return [os.path.join(directory, name) for name in found]


def step_of(path: str) -> int:
    """The step in a checkpoint's name."""
    match = _NAME.fullmatch(os.path.basename(path))
    assert match is not None, path
    return int(match.group(1))


def find_fault(path: str) -> str | None:
    """Returns what is wrong with a checkpoint; `None` if it is complete.

    Raises:
        OSError: that cannot be told at the moment.
    """
    try:
        manifest = files.read_json(os.path.join(path, _MANIFEST))
    except (ValueError, *_ABSENT):
        return f"its {_MANIFEST} is missing or damaged"
    # Names are compared, so that a manifest cannot refer to a file elsewhere.
    if not isinstance(manifest, dict) or set(manifest) != _FILES:
        return f"its {_MANIFEST} is damaged"
    for name, expected in sorted(manifest.items()):
        file = os.path.join(path, name)
        try:
            found = _fingerprint(file)
        except _ABSENT:
            return f"{name} is missing or not a file"
        if found != expected:
            return f"{name} is damaged: it does not match {_MANIFEST}"
    return None


def remove(path: str) -> None:
    """Deletes a checkpoint; from the first moment it is not valid any more.

    If it is a link to another run's checkpoint, only the link is deleted.
    """
    directory = os.path.dirname(path)
    if not is_local(directory):
        files.remove(os.path.join(path, _MANIFEST))
        files.remove(path)
        return
    files.refuse_link(directory)
    # Deleting file by file would leave a torn checkpoint for a while.
    gone = os.path.join(directory, f"tmp_{uuid.uuid4().hex}")
    os.rename(path, gone)
    files.remove(gone)


def remove_leftovers(directory: str) -> None:
    """Deletes what killed saves left behind."""
    files.refuse_link(directory)
    for name in files.listing(directory):
        # Not `.old`: that may be the only checkpoint of its step.
        if name.startswith("tmp_"):
            remove_if_possible(os.path.join(directory, name))
    if not is_local(directory):
        for path in listing(directory):
            if not files.exists(os.path.join(path, _MANIFEST)):
                remove_if_possible(path)


def _read(path: str) -> Snapshot:
    """Reads a checkpoint whose checksums have been found to match."""
    host = files.read_json(os.path.join(path, "state.json"))
    _STATE(host, "state.json")
    step, version = host.pop("step"), host.pop("format")
    if version != FORMAT:
        raise OtherFormat(
            f"{path} was written by a different version of the trainer (format "
            f"{version}, while this one reads {FORMAT}). Use that version, or "
            "choose another --model_dir."
        )
    # A directory that was renamed by hand would continue from the wrong step.
    if _NAME.fullmatch(os.path.basename(path)) and step_of(path) != step:
        raise ValueError(f"state.json is of step {step}")
    snapshot = Snapshot(step, _read_arrays(path), host)
    check(snapshot)
    return snapshot


def _read_arrays(path: str) -> dict[str, Any]:
    with _without_pattern(path) as plain:
        reader = tf.train.load_checkpoint(os.path.join(plain, "arrays"))
        shapes = reader.get_variable_to_shape_map()
        _check_sizes(path, shapes, reader.get_variable_to_dtype_map())
        return {name: reader.get_tensor(name) for name in shapes}


@contextlib.contextmanager
def _without_pattern(directory: str) -> Iterator[str]:
    """Yields a path to the same files that is not taken for a pattern.

    TensorFlow's checkpoint reader searches for files that match the given
    path: in a directory such as `lr=[0.1]` it finds nothing.
    """
    if not _PATTERN.search(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "checkpoint")
        if is_local(directory):
            os.symlink(os.path.abspath(directory), other)
        else:
            os.mkdir(other)
            for name in files.listing(directory):
                tf.io.gfile.copy(
                    os.path.join(directory, name), os.path.join(other, name)
                )
        yield other


def _check_sizes(
    path: str, shapes: dict[str, list[int]], dtypes: dict[str, tf.DType]
) -> None:
    """Checks that arrays are no larger than the file that holds them.

    TensorFlow allocates the memory before it reads the data.
    """
    there = tf.io.gfile.stat(os.path.join(path, _DATA)).length
    wanted = sum(
        math.prod(shape) * (1 if dtypes[n] == tf.string else dtypes[n].size)
        for n, shape in shapes.items()
    )
    # Strings count one byte each, as their lengths are not known here.
    if wanted > there:
        raise ValueError(f"{_DATA} has {there} bytes, and its arrays {wanted}")


def _settle_old(directory: str) -> None:
    """Deletes old checkpoints that were replaced; renames others back."""
    for old in listing(directory):
        final = old.removesuffix(_OLD)
        if final != old and files.exists(final):
            remove(old)
        elif final != old:
            os.rename(old, final)


def _write(path: str, snapshot: Snapshot) -> None:
    """Fills a checkpoint's directory."""
    _write_arrays(os.path.join(path, "arrays"), snapshot.arrays)
    state = {"format": FORMAT, "step": snapshot.step, **snapshot.host}
    _write_json(os.path.join(path, "state.json"), state)
    manifest = {
        name: _fingerprint(os.path.join(path, name)) for name in sorted(_FILES)
    }
    # Last: a checkpoint without its manifest is not valid.
    _write_json(os.path.join(path, _MANIFEST), manifest)


def _write_arrays(prefix: str, arrays: dict[str, Any]) -> None:
    names = sorted(arrays)
    with tf.device("CPU:0"):
        # The op itself: tf.train.Checkpoint saves trackable objects, not
        # arrays by name.
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(arrays[name]) for name in names],
        )


def _write_json(path: str, value: dict[str, Any]) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(value, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy scalars, which many callbacks keep, as plain numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _fingerprint(path: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with files.open_to_read(path) as file:
        # In chunks: a checkpoint may be larger than the memory that is free.
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}
