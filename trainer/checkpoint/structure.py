"""Checks that the variables in a checkpoint are those of a run."""

from typing import Any

import tensorflow as tf

from trainer.checkpoint.contents import key_of
from trainer.checkpoint.storage import Snapshot
from trainer.errors import UserError
from trainer.runtime.schema import Misfit


def describe(variable: Any) -> dict[str, Any]:
    """A snapshot's entry for a variable: its path and its shape."""
    return {
        "path": getattr(variable, "path", variable.name),
        "shape": [int(size) for size in variable.shape],
    }


def check_shapes(
    group: str, members: list[Any], stored: dict[str, list[dict[str, Any]]]
) -> None:
    """Checks that a group of variables has the same shapes in a checkpoint.

    Args:
        group: such as `"model"`.
        members: the run's variables.
        stored: by group, what `describe` returned for the checkpoint's.

    Raises:
        UserError: they differ; the first difference is named.
    """
    ours = [describe(variable) for variable in members]
    theirs = stored.get(group, [])
    shapes = [entry["shape"] for entry in ours]
    if shapes == [entry["shape"] for entry in theirs]:
        return
    differing = next(
        (
            f"{a['path']} has shape {a['shape']}, but {b['shape']} there"
            for a, b in zip(ours, theirs, strict=False)
            if a["shape"] != b["shape"]
        ),
        f"{len(ours)} variables, but {len(theirs)} there",
    )
    raise UserError(
        f"The checkpoint is of another {group.split('/')[0]}: {differing}. "
        "Choose another --model_dir, or start from it with --init_from."
    )


def check_types(group: str, members: list[Any], snapshot: Snapshot) -> None:
    """Checks that stored values can be cast to the types of the variables.

    Raises:
        Misfit: one cannot, such as text where a number is wanted.
    """
    for i, variable in enumerate(members):
        key = key_of(group, i)
        then = tf.as_dtype(snapshot.arrays[key].dtype)
        now = tf.as_dtype(variable.dtype)
        if _kind(then) != _kind(now):
            raise Misfit(
                f"the array {key} is of {then.name}, and {now.name} is wanted"
            )


def _kind(dtype: tf.DType) -> tuple[bool, bool, bool]:
    # Within a kind values are cast: the run may have another precision now.
    return dtype.is_floating, dtype.is_integer, dtype.is_bool
