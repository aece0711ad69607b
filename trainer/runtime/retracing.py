"""Says why a function is traced again: what is not as it was before."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging


def telling_retraces(
    function: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """A function to trace that warns when it is traced for other arguments.

    Each cause is reported once.

    Args:
        function: what is traced; it only runs as Python while it is.
        name: what it is, such as `"training step"`.
    """
    parameters = inspect.signature(function).parameters
    before: list[dict[str, str]] = []
    reported: set[str] = set()

    @functools.wraps(function)
    def traced(*arguments: Any, **named: Any) -> Any:
        given = dict(zip(parameters, arguments, strict=False)) | named
        now = dict(_described(given))
        if before and now not in before:
            # Compared with the most similar one.
            then = min(before, key=lambda one: len(_differences(one, now)))
            for change in _differences(then, now):
                if change not in reported:
                    reported.add(change)
                    logging.warning(
                        "The %s is traced again, which takes time: %s.",
                        name,
                        change,
                    )
        if now not in before:
            before.append(now)
        return function(*arguments, **named)

    return traced


def _differences(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """What has changed, in words; several leaves may give the same one."""
    if then.keys() != now.keys():
        added = sorted(now.keys() - then.keys())
        gone = sorted(then.keys() - now.keys())
        parts = [f"{', '.join(added)} is new"] if added else []
        parts += [f"{', '.join(gone)} is gone"] if gone else []
        return [f"the structure has changed: {' and '.join(parts)}"]
    return [
        f"the {key} is {now[key]}, was {then[key]}"
        for key in now
        if now[key] != then[key]
    ]


def _described(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts about arguments: `"shape of batch[0]"`, `"(8, 3)"`."""
    for name, value in given.items():
        spec = getattr(value, "element_spec", None)
        if spec is not None:
            # The type of an iterator says what its batches are.
            name, value = "batch", spec
        for path, leaf in keras.tree.flatten_with_path(value):
            where = name + "".join(f"[{part!r}]" for part in path)
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                yield f"shape of {where}", str(tuple(_sizes(leaf.shape)))
                yield f"dtype of {where}", tf.as_dtype(leaf.dtype).name
            elif isinstance(leaf, tf.TypeSpec):
                yield f"type of {where}", str(leaf)
            elif leaf is None or isinstance(leaf, bool | int | float | str):
                yield f"value of {where}", repr(leaf)
            else:
                yield f"type of {where}", type(leaf).__name__


def _sizes(shape: Any) -> list[Any]:
    shape = tf.TensorShape(shape)
    return ["unknown rank"] if shape.rank is None else shape.as_list()
