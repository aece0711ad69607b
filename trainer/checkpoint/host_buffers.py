"""Host memory for copies of tensors that are saved in the background."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.checkpoint.storage import Snapshot

_LARGE = 1 << 20  # Bytes. Smaller tensors are copied in no time.
# Not bfloat16, for example, which NumPy does not have.
_KINDS = (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64)
_ALIGNMENT = 64  # Bytes; TensorFlow's own tensors have it too.


class _Place(NamedTuple):
    """One piece of memory: as an array to write to, as a tensor to save."""

    array: np.ndarray
    tensor: tf.Tensor


class Staging:
    """Copies of large tensors, in memory that is reused for each save.

    Without it TensorFlow copies a variable when the next step writes what a
    save still reads. That takes five times as long, because each copy is in
    new memory, which the kernel has to find and clear.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    def reserve(self, specs: dict[str, tf.TensorSpec]) -> None:
        """Takes the memory for tensors now, so that no step waits for it.

        Args:
            specs: shapes and dtypes by array name; small ones are left out.
        """
        for name, spec in specs.items():
            self._place(name, spec)

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot that shares no large memory with variables.

        Its arrays are valid until the next `copy`.

        Args:
            snapshot: its tensors are on the host.
        """
        return dataclasses.replace(
            snapshot,
            arrays={
                name: self._copy(name, value)
                for name, value in snapshot.arrays.items()
            },
        )

    def _copy(self, name: str, value: Any) -> Any:
        # Arrays in a snapshot are copies already.
        if not isinstance(value, tf.Tensor):
            return value
        place = self._place(name, tf.TensorSpec(value.shape, value.dtype))
        # Small, or not to be shared: TensorFlow copies it if a step overwrites
        # it.
        if place is None:
            return value
        # from_dlpack shares the tensor's memory: this is the only copy.
        np.copyto(place.array, np.from_dlpack(value))
        return place.tensor

    def _place(self, name: str, spec: tf.TensorSpec) -> _Place | None:
        if not _is_staged(spec):
            return None
        found = self._places.get(name)
        if found is None or (
            (found.tensor.shape, found.tensor.dtype) != (spec.shape, spec.dtype)
        ):
            found = self._places[name] = _new_place(spec)
        return found


def _is_staged(spec: tf.TensorSpec) -> bool:
    """Large, and of a kind that NumPy and TensorFlow can share."""
    if spec.dtype not in _KINDS:
        return False
    return bool(spec.shape.num_elements() * spec.dtype.size >= _LARGE)


def _new_place(spec: tf.TensorSpec) -> _Place:
    kind = spec.dtype.as_numpy_dtype
    size = spec.shape.num_elements() * spec.dtype.size
    # Longer, so that the start can move to an aligned address.
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    # np.empty only reserves addresses: the kernel gives the memory on first
    # write, which is now, and not in the first save.
    memory.fill(0)
    # np.empty aligns to 16 bytes only.
    start = -memory.ctypes.data % _ALIGNMENT
    array = memory[start : start + size].view(kind).reshape(spec.shape)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return _Place(array, tensor)
