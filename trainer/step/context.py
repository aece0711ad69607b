"""`StepContext`: the surroundings of a step, for each thread.

Keras calls back from inside a step: layers assign to variables, draw random
numbers, update metrics and add losses, and none of these calls can pass on an
argument of ours. So they find it in an ambient object. Mirrored strategies
trace each replica in a thread of its own, so every thread has its own values.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:  # It reads the context.
    from trainer.step.replica_batch import ReplicaBatch


@dataclasses.dataclass
class Drawing:
    """The inputs of the random numbers of a step.

    Attributes:
        key: of the seed, the step, the micro-batch and the replica.
        draws: by generator, how often it has been drawn from.
    """

    key: tf.Tensor
    draws: dict[int, int]


class StepContext(threading.local):
    """The surroundings of a step; outside of one, all are `None` or empty.

    Attributes:
        batch: the replica's batch, whose number of examples weighs what
            layers assign to variables.
        graph: the graph of the step; tensors of a loop or a function within
            it cannot be used outside of these.
        drawing: gives seed generators their numbers.
        draws_as_graph: whether XLA compiles what is traced, and has to draw
            as the graph does.
        logged: takes what `trainer.log` is given, by name.
        metric_calls: takes the updates that layers make, by the metric's id.
        probe: a `trainer.step.probe_runs.Run`, which takes what the step would
            do while it is only tried.
        replica: stands for the replica context, while the step is tried.
        recomputing: whether a layer is called once more for its gradient.
        added_losses: what each layer has passed to `add_loss`.
    """

    batch: "ReplicaBatch | None" = None
    graph: tf.Graph | None = None
    drawing: Drawing | None = None
    draws_as_graph = False
    logged: dict[str, Any] | None = None
    metric_calls: dict[int, list[Any]] | None = None
    probe: Any = None
    replica: Any = None
    recomputing = False

    # threading.local calls this once in every thread.
    def __init__(self) -> None:
        self.added_losses: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )

    @contextlib.contextmanager
    def within(self, **values: Any) -> Iterator[None]:
        """Sets some of the attributes for as long as it is open."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def as_of_now(self) -> Callable[[], AbstractContextManager[None]]:
        """Remembers all of it.

        Returns:
            A context in which it is again as it was, on any later occasion.
        """
        now, drawing = {**vars(self)}, self.drawing
        drawn = {} if drawing is None else {**drawing.draws}

        def again() -> AbstractContextManager[None]:
            if drawing is not None:
                now["drawing"] = Drawing(drawing.key, {**drawn})
            return self.within(**now)

        return again


step_context = StepContext()


def current_graph() -> tf.Graph | None:
    """The graph that is being built; `None` where Python runs as it is."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
