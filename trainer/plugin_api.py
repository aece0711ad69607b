"""What plugins are made of, beside the names that `trainer` exports.

Strategies, callbacks and data plugins, in this project and elsewhere, import
from here and from `trainer`, and from nowhere else in this package.
"""

from typing import TYPE_CHECKING

from trainer.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainer.checkpoint import storage
    from trainer.checkpoint.host_buffers import Staging
    from trainer.data import Padded
    from trainer.errors import EXIT_START_AGAIN, nearest, outside_graph
    from trainer.loop.monitor import Monitor
    from trainer.loop.schedule import Period, Ticker, parse_period
    from trainer.runtime import atomic_files, schema, signals
    from trainer.runtime.atomic_files import REFUSALS, write_whole
    from trainer.runtime.process_exit import give_up, skip_teardown
    from trainer.step.graph import graph_function, repeat
    from trainer.step.options import StrategyOptions
    from trainer.step.reductions.sums import Sums
    from trainer.strategy.checks import require_positive
    from trainer.strategy.cluster.resolve import resolve_cluster
    from trainer.strategy.cluster.spec import JOBS, Cluster, split_address
    from trainer.strategy.graph_loop import GraphLoop, Runner, Step
    from trainer.strategy.plugin import Detection, MakePieces

_HOMES = {
    "Cluster": "trainer.strategy.cluster.spec",
    "Detection": "trainer.strategy.plugin",
    "EXIT_START_AGAIN": "trainer.errors",
    "GraphLoop": "trainer.strategy.graph_loop",
    "JOBS": "trainer.strategy.cluster.spec",
    "MakePieces": "trainer.strategy.plugin",
    "Monitor": "trainer.loop.monitor",
    "Padded": "trainer.data",
    "Period": "trainer.loop.schedule",
    "REFUSALS": "trainer.runtime.atomic_files",
    "Runner": "trainer.strategy.graph_loop",
    "Staging": "trainer.checkpoint.host_buffers",
    "Step": "trainer.strategy.graph_loop",
    "StrategyOptions": "trainer.step.options",
    "Sums": "trainer.step.reductions.sums",
    "Ticker": "trainer.loop.schedule",
    "atomic_files": "trainer.runtime",
    "give_up": "trainer.runtime.process_exit",
    "graph_function": "trainer.step.graph",
    "nearest": "trainer.errors",
    "outside_graph": "trainer.errors",
    "parse_period": "trainer.loop.schedule",
    "repeat": "trainer.step.graph",
    "require_positive": "trainer.strategy.checks",
    "resolve_cluster": "trainer.strategy.cluster.resolve",
    "schema": "trainer.runtime",
    "signals": "trainer.runtime",
    "skip_teardown": "trainer.runtime.process_exit",
    "split_address": "trainer.strategy.cluster.spec",
    "storage": "trainer.checkpoint",
    "write_whole": "trainer.runtime.atomic_files",
}

__all__ = [
    "Cluster",
    "Detection",
    "EXIT_START_AGAIN",
    "GraphLoop",
    "JOBS",
    "MakePieces",
    "Monitor",
    "Padded",
    "Period",
    "REFUSALS",
    "Runner",
    "Staging",
    "Step",
    "StrategyOptions",
    "Sums",
    "Ticker",
    "atomic_files",
    "give_up",
    "graph_function",
    "nearest",
    "outside_graph",
    "parse_period",
    "repeat",
    "require_positive",
    "resolve_cluster",
    "schema",
    "signals",
    "skip_teardown",
    "split_address",
    "storage",
    "write_whole",
]

__getattr__ = lazy_names(__name__, _HOMES)
