"""Steps that are only tried: afterwards a run is as it was."""

import contextlib
from collections.abc import Iterator

from trainer.loop.run import Run


def why_not_set_back(run: Run) -> str | None:
    """Why no step may be tried; `None` if it may. It must have been traced."""
    if run.parts.untracked.lost:
        return "its steps change what cannot be set back"
    return None


@contextlib.contextmanager
def without_trace(run: Run) -> Iterator[None]:
    """Sets everything back that steps change, whatever happens."""
    parts, step = run.parts, run.step
    carried = parts.metrics.carried_variables
    before = [variable.numpy() for variable in carried]
    try:
        with run.state.unchanged():
            yield
    finally:
        for variable, value in zip(carried, before, strict=True):
            variable.assign(value)
        if parts.watch is not None:
            parts.watch.forget()
        run.step = step
