"""What a step logs by `trainer.log`, while it is traced.

A value that a replica computes is one of many: over replicas, micro-batches
and steps. It is noted here, and the step returns it as an `Average`, which
adds up over all of them like everything else that a step measures.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.reductions.average import Average, average

# Mirrored strategies trace each replica in a thread of its own.
_local = threading.local()
_MEDIA = "Images, histograms, text and audio are logged in a callback."
_VALID = (
    "Pass one value for each example (of shape [batch]), or "
    "trainer.average(total, count); or say reduction='mean' or 'sum' for a "
    "scalar that each replica has."
)


class Notes:
    """The values that a step has logged on one replica."""

    def __init__(self) -> None:
        self._graph = _graph()
        self._values: dict[str, tuple[Any, str | None]] = {}

    def add(self, name: str, value: Any, reduction: str | None) -> None:
        """Notes a value.

        Raises:
            UserError: it cannot be one of a step.
        """
        what = f"trainer.log({name!r}, ...) in a step"
        if _graph() is not self._graph:
            raise UserError(
                f"{what} is inside a loop, a condition or a tf.function. Log "
                "once in a step, outside of these."
            )
        if name in self._values:
            raise UserError(f"{what} is called twice. Log a name once.")
        if not isinstance(value, Average):
            value = tf.convert_to_tensor(value)
            self._check(what, value, reduction)
            if value.dtype.is_bool:
                value = tf.cast(value, tf.float32)
        elif reduction is not None:
            raise UserError(
                f"{what}: an average has a reduction of its own: leave "
                f"reduction={reduction!r} out."
            )
        self._values[name] = value, reduction

    def _check(self, what: str, value: tf.Tensor, reduction: Any) -> None:
        rank, dtype = value.shape.rank, value.dtype
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise UserError(f"{what} got a {dtype.name}. {_VALID} {_MEDIA}")
        if rank == 0 and reduction is None:
            raise UserError(
                f"{what} got a scalar, of which each replica has its own. "
                f"{_VALID}"
            )
        if rank not in (0, 1):
            raise UserError(
                f"{what} got a tensor of shape {value.shape}. {_VALID} {_MEDIA}"
            )
        if rank == 1 and reduction is not None:
            raise UserError(
                f"{what}: values of examples are averaged over all examples: "
                f"leave reduction={reduction!r} out, or reduce them first."
            )

    def averages(
        self,
        logs: Mapping[str, Any],
        *,
        rows: Any,
        real: tf.Tensor | None,
        pieces: int,
    ) -> dict[str, Average]:
        """What the step returns for the values.

        Args:
            logs: what else it returns.
            rows: how many rows the replica's batch has.
            real: which of them are examples; `None` where all are.
            pieces: how many replicas and micro-batches share a global batch.

        Raises:
            UserError: a name is taken, or a value does not fit the batch.
        """
        found = {}
        # Some have a prefix, such as "metric:"; "loss" may come in parts.
        taken = {"loss", *logs, *(one.partition(":")[2] for one in logs)}
        for name, (value, reduction) in self._values.items():
            if name in taken:
                raise UserError(
                    f"trainer.log({name!r}, ...) in a step has the name of a "
                    "value that the step returns. Choose another one."
                )
            if isinstance(value, Average):
                found[name] = value
            elif value.shape.rank:
                found[name] = _mean(name, value, rows=rows, real=real)
            else:
                # A sum over pieces counts once for all of them.
                count = 1.0 / pieces if reduction == "sum" else 1.0
                found[name] = average(value, count)
        return found


def _mean(name: str, value: tf.Tensor, *, rows: Any, real: Any) -> Average:
    """The mean over all examples of one value for each."""
    known = value.shape[0]
    if isinstance(rows, int) and known is not None and known != rows:
        raise UserError(
            f"trainer.log({name!r}, ...) in a step got {known} values, and the "
            f"batch has {rows} examples. {_VALID}"
        )
    value = tf.cast(value, tf.float32)
    if real is None:
        return average(
            tf.reduce_sum(value), tf.cast(tf.shape(value)[0], tf.float32)
        )
    # tf.where, not a product: padding may be anything, and NaN times 0 is NaN.
    kept = tf.where(real > 0, value, tf.zeros_like(value))
    return average(tf.reduce_sum(kept), tf.reduce_sum(real))


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Notes what is logged on this replica."""
    before = getattr(_local, "notes", None)
    _local.notes = notes = Notes()
    try:
        yield notes
    finally:
        _local.notes = before


@contextlib.contextmanager
def ignoring() -> Iterator[None]:
    """Leaves out what is logged, as in a trial."""
    before = getattr(_local, "notes", None)
    _local.notes = False
    try:
        yield
    finally:
        _local.notes = before


def note(
    name: str,
    value: Any,
    reduction: str | None,
    *,
    kind: str | None,
    split: str | None,
) -> bool:
    """Notes a value if a step is being traced, or tried.

    Returns:
        Whether it was one of a step.

    Raises:
        UserError: it cannot be one of a step.
    """
    notes = getattr(_local, "notes", None)
    if notes is None:
        # A graph that is not a step's, such as that of `predict`.
        return not tf.executing_eagerly()
    if split is not None:
        raise UserError(
            f"trainer.log({name!r}, ...) in a step has split = {split!r}. "
            "Leave it out: the value is that of the split it is a step of."
        )
    if kind not in (None, "scalar"):
        raise UserError(
            f"trainer.log({name!r}, ...) in a step has kind = {kind!r}. "
            f"{_MEDIA}"
        )
    if notes is not False:
        notes.add(name, value, reduction)
    return True


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
