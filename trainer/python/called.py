"""What `evaluate` and `predict` do for callbacks, and print."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer.loop.callback_list import CallbackList
from trainer.python.callbacks import as_callbacks

if TYPE_CHECKING:
    from trainer.python.running import Running


@contextlib.contextmanager
def calling(
    trainer: "Running", callbacks: Any, **params: Any
) -> Iterator[CallbackList]:
    """Gives callbacks the model; those of a run are not called meanwhile.

    Args:
        trainer: built.
        callbacks: a list, a single one or `None`.
        **params: what Keras' callbacks find in their `params`.

    Raises:
        UserError: an entry is not a callback.
    """
    called = CallbackList(as_callbacks(callbacks), trainer)
    called.attach(trainer.model, params)
    before, trainer._called = trainer._called, called
    try:
        yield called
    finally:
        trainer._called = before


def line_of(name: str, values: Mapping[str, float]) -> str:
    """A line to print: `eval  loss 1.254  accuracy 0.3672`."""
    return "  ".join([name, *(f"{k} {v:.4g}" for k, v in values.items())])
