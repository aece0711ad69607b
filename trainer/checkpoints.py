"""Checkpoint directories: complete or absent, never torn.

    checkpoints/step_00000100/
        arrays.index, arrays.data-...   a TensorFlow checkpoint of the arrays
        state.json                      everything that is not an array
        manifest.json                   size and SHA-256 of each file above

A checkpoint is written under a temporary name (`tmp_...`), synchronized to
disk and renamed. One whose manifest is missing or does not match is passed
over. Saving a step again moves the old one to `old_00000100` first: it counts
until the new one has its name.
`tf.train.load_checkpoint(".../step_00000100/arrays")` reads the arrays.
"""

import dataclasses
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer import files
from trainer.errors import UserError
from trainer.files import make_directory, remove_if_possible, synchronize
from trainer.patterns import without_pattern

_NAME = re.compile(r"(step|old)_(\d{8,})")
_MANIFEST = "manifest.json"
# TensorFlow writes arrays that are saved at once to one data file.
_FILES = {"state.json", "arrays.index", "arrays.data-00000-of-00001"}
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a run at one step.

    Attributes:
        step: optimizer steps that were done.
        arrays: name to tensor or array.
        host: JSON values.
    """

    step: int
    arrays: dict[str, Any]
    host: dict[str, Any]


def save(directory: str, snapshot: Snapshot) -> str:
    """Writes a checkpoint; readers see all of it or nothing.

    Args:
        directory: holds the run's checkpoints; made if it does not exist.
        snapshot: what to write. Its tensors are not changed.

    Returns:
        The checkpoint's path.

    Raises:
        OSError, tf.errors.OpError: the file system refused; nothing that was
            there before is lost.
    """
    final = os.path.join(directory, f"step_{snapshot.step:08d}")
    temporary = os.path.join(directory, f"tmp_{uuid.uuid4().hex}")
    files.refuse_link(directory)
    make_directory(directory)
    try:
        tf.io.gfile.mkdir(temporary)
        _write(temporary, snapshot)
        _settle_old(directory)
        if files.exists(final):
            tf.io.gfile.rename(final, _old_name(final))
        tf.io.gfile.rename(temporary, final)
        synchronize(directory)
    except BaseException:
        remove_if_possible(temporary)
        raise
    remove_if_possible(_old_name(final))
    return final


def load(path: str) -> Snapshot:
    """Reads a checkpoint.

    Args:
        path: the directory of one checkpoint.

    Raises:
        UserError: it is not complete; the message says what is wrong.
    """
    fault = find_fault(path)
    if fault is None:
        try:
            return _read(path)
        except (KeyError, TypeError, ValueError, *files.REFUSALS) as error:
            fault = f"it cannot be read ({error})"
    raise UserError(f"{path} is no usable checkpoint: {fault}.")


def load_newest(directory: str) -> Snapshot | None:
    """Reads the newest usable checkpoint; `None` if there is none.

    A damaged one is passed over, with a warning, for the one before.
    """
    return next(newest_first(directory), None)


def newest_first(directory: str) -> Iterator[Snapshot]:
    """Reads usable checkpoints, until one is found that will do.

    Damaged ones are passed over, with a warning.
    """
    passed_over = False
    for path in reversed(listing(directory)):
        try:
            snapshot = load(path)
        except UserError as error:
            logging.warning("Passing over a checkpoint. %s", error)
        else:
            if passed_over:
                logging.warning("Going on from step %d.", snapshot.step)
            yield snapshot
        passed_over = True


def load_newer(directory: str, than: int) -> Snapshot | None:
    """Reads the newest complete checkpoint of a run that is going on.

    The run may delete a checkpoint while it is read here, and on an object
    store one appears file by file: such a one is passed over in silence.

    Args:
        directory: holds the run's checkpoints; it need not exist yet.
        than: only later steps count.
    """
    try:
        paths = listing(directory)
    except tf.errors.NotFoundError:
        return None
    for path in reversed(paths):
        if step_of(path) <= than:
            break
        try:
            return load(path)
        # TensorFlow's reader says ValueError of some files that are gone.
        except (UserError, OSError, ValueError, tf.errors.OpError) as error:
            logging.info("Passing over %s: %s", path, error)
    return None


def listing(directory: str) -> list[str]:
    """The checkpoints' paths, oldest first, without looking into them."""
    if not tf.io.gfile.isdir(directory):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    found = sorted(
        filter(_NAME.fullmatch, names),
        key=lambda name: (step_of(name), not _is_old(name)),
    )
    return [os.path.join(directory, name) for name in found]


def step_of(path: str) -> int:
    """The step that a checkpoint's name says."""
    match = _NAME.fullmatch(os.path.basename(path))
    assert match is not None, path
    return int(match.group(2))


def find_fault(path: str) -> str | None:
    """What is wrong with a checkpoint; `None` if it is complete."""
    try:
        with tf.io.gfile.GFile(os.path.join(path, _MANIFEST)) as file:
            manifest = json.load(file)
    except (tf.errors.OpError, ValueError, RecursionError):
        return f"its {_MANIFEST} is missing or damaged"
    # Names are compared, so that a manifest leads to no file elsewhere.
    if not isinstance(manifest, dict) or set(manifest) != _FILES:
        return f"its {_MANIFEST} is damaged"
    for name, expected in sorted(manifest.items()):
        try:
            found = _fingerprint(os.path.join(path, name))
        except tf.errors.OpError:
            return f"{name} is missing or cannot be read"
        if found != expected:
            return f"{name} is damaged: it does not match {_MANIFEST}"
    return None


def remove(path: str) -> None:
    """Deletes a checkpoint; it stops counting at once.

    Of one that is a link to another run's, the link goes.
    """
    directory = os.path.dirname(path)
    files.refuse_link(directory)
    gone = os.path.join(directory, f"tmp_{uuid.uuid4().hex}")
    tf.io.gfile.rename(path, gone)
    files.remove(gone)


def remove_leftovers(directory: str) -> None:
    """Deletes what killed saves left behind."""
    if not tf.io.gfile.isdir(directory):
        return
    files.refuse_link(directory)
    for name in tf.io.gfile.listdir(directory):
        if name.startswith("tmp_"):
            remove_if_possible(os.path.join(directory, name))


def _read(path: str) -> Snapshot:
    """Reads a checkpoint whose checksums were found to be right."""
    with tf.io.gfile.GFile(os.path.join(path, "state.json")) as file:
        host = json.load(file)
    if not isinstance(host, dict) or not isinstance(host.get("step"), int):
        raise ValueError("state.json holds no step")
    with without_pattern(path) as plain:
        reader = tf.train.load_checkpoint(os.path.join(plain, "arrays"))
        arrays = {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
        }
    return Snapshot(host.pop("step"), arrays, host)


def _old_name(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, name.replace("step_", "old_"))


def _is_old(path: str) -> bool:
    return os.path.basename(path).startswith("old_")


def _settle_old(directory: str) -> None:
    """Deletes what was saved again; puts back what still has to be."""
    for old in filter(_is_old, listing(directory)):
        final = os.path.join(directory, f"step_{step_of(old):08d}")
        if files.exists(final):
            remove(old)
        else:
            tf.io.gfile.rename(old, final)


def _write(path: str, snapshot: Snapshot) -> None:
    """Fills a checkpoint's directory; all of it is on disk in the end."""
    _write_arrays(os.path.join(path, "arrays"), snapshot.arrays)
    state = {"step": snapshot.step, **snapshot.host}
    _write_json(os.path.join(path, "state.json"), state)
    manifest = {
        name: _fingerprint(os.path.join(path, name)) for name in sorted(_FILES)
    }
    for name in sorted(_FILES):
        synchronize(os.path.join(path, name))
    # Last, because on an object store the rename of a directory is no single
    # act: only a checkpoint with its manifest counts.
    _write_json(os.path.join(path, _MANIFEST), manifest)
    synchronize(os.path.join(path, _MANIFEST))
    synchronize(path)


def _write_arrays(prefix: str, arrays: dict[str, Any]) -> None:
    names = sorted(arrays)
    with tf.device("CPU:0"):
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
    """NumPy scalars, which callbacks of all kinds keep, as plain numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _fingerprint(path: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}
