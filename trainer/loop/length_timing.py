"""Times the graph, where only the length of host loops depends on it.

Every process of a run makes the same steps, and does what the chief measures:
a step may wait for all of them.
"""

import collections
from typing import Protocol, runtime_checkable

from trainer.data import Batches
from trainer.loop.form_timing import Timing
from trainer.loop.form_trial import Contender, python_in
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.without_trace import why_not_set_back, without_trace
from trainer.step.forms import Form
from trainer.strategy.plugin import StrategyPlugin

# A call that is as long as this is no longer mostly overhead, unless more steps
# in a call still make each of them faster.
_CALL_SECONDS, _MOST_STEPS = 0.2, 100
_FASTER = 0.8
_BITS = 31
NOTHING_ELSE = "nothing else is possible here"


@runtime_checkable
class Inspectable(Protocol):
    """A runner that shows what its steps consist of, once traced."""

    def operations(self) -> collections.Counter[str]:
        """See `GraphLoop.operations`."""


def told(plugin: StrategyPlugin, number: int) -> int:
    """The chief's number, in all processes; each has to call this.

    Args:
        plugin: the run's.
        number: at least 0 and less than 2**31.
    """
    bits = [plugin.is_chief and bool(number >> i & 1) for i in range(_BITS)]
    return sum(1 << i for i, bit in enumerate(plugin.any_of(bits)) if bit)


def time_graph(trainer: RunningTrainer, batches: Batches) -> Timing:
    """Makes some steps that leave no trace, and times them.

    Args:
        trainer: built and prepared. Its steps are a graph.
        batches: its training data.

    Returns:
        The steps per second; none where no step may be tried.
    """
    plugin = trainer.plugin
    with trainer.accounts.phase("calibration"):
        graph = Contender(trainer, batches, Form.GRAPH)
        why_not = _why_not_tried(trainer, graph)
        # Alike in all processes, whatever one of them has traced.
        if plugin.any_process(why_not is not None):
            why = why_not or "steps cannot be tried in another process"
            return Timing(
                best=Form.GRAPH,
                steps_per_second={},
                why=why,
                is_complete=False,
            )
        count, goes_on, last = 1, True, 0.0
        with without_trace(trainer):
            # Traces what is traced late, on a worker for example.
            graph.compile()
            while goes_on:
                step_seconds = graph.time(count)
                grows = (
                    count * step_seconds < _CALL_SECONDS
                    or step_seconds < _FASTER * last
                )
                last = step_seconds
                goes_on = bool(told(plugin, grows and count < _MOST_STEPS))
                count = min(4 * count, _MOST_STEPS)
    trainer.use_form(Form.GRAPH, graph.runner)
    return Timing(
        best=Form.GRAPH,
        steps_per_second={Form.GRAPH: float(f"{1.0 / graph.seconds:.3g}")},
        why=NOTHING_ELSE,
        is_complete=True,
    )


def _why_not_tried(trainer: RunningTrainer, graph: Contender) -> str | None:
    """Why no step may be made in a trial."""
    if (why := why_not_set_back(trainer)) is not None:
        return why
    if trainer.spec.run_eagerly or not isinstance(graph.runner, Inspectable):
        return "its steps run as Python"
    found = python_in(graph.runner.operations())
    if found:
        return f"its steps call Python ({', '.join(found)})"
    return None
