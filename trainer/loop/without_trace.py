"""Steps that are only tried: afterwards a run is as it was."""

import contextlib
from collections.abc import Iterator

from trainer.loop.running_trainer import RunningTrainer


def why_not_set_back(trainer: RunningTrainer) -> str | None:
    """Why no step may be tried; `None` if it may. It must have been traced."""
    if trainer.parts.untracked.lost:
        return "its steps change what cannot be set back"
    return None


@contextlib.contextmanager
def without_trace(trainer: RunningTrainer) -> Iterator[None]:
    """Sets everything back that steps change, whatever happens."""
    parts, step = trainer.parts, trainer.step
    carried = parts.metrics.carried_variables
    before = [variable.numpy() for variable in carried]
    try:
        with trainer.state.unchanged():
            yield
    finally:
        for variable, value in zip(carried, before, strict=True):
            variable.assign(value)
        if parts.watch is not None:
            parts.watch.forget()
        trainer.step = step
