"""What plugins are made of, beside the names that `trainer` exports.

Strategies, callbacks and data plugins, in this project and elsewhere, import
from here and from `trainer`, and from nowhere else in this package.
"""

from typing import TYPE_CHECKING

from trainer.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainer.checkpoint import storage
    from trainer.data import Padded
    from trainer.errors import EXIT_START_AGAIN, nearest, outside_graph
    from trainer.loop.evaluation_sets import names_in_logs
    from trainer.loop.logged import Media, histogram
    from trainer.loop.logger import Entry
    from trainer.loop.monitor import Monitor
    from trainer.loop.schedule import Ticker
    from trainer.runtime import files, run_paths, schema, signals
    from trainer.runtime.files import write_whole
    from trainer.runtime.graph import graph_function, repeat
    from trainer.runtime.memory import peak_memory
    from trainer.runtime.private_names import require
    from trainer.runtime.process_exit import give_up, skip_teardown
    from trainer.runtime.report import Row, Section, show
    from trainer.step.forms import StrategyOptions
    from trainer.step.programs import Program, Programs
    from trainer.step.reductions.slots import BETWEEN_REPLICAS
    from trainer.step.reductions.sums import Sums
    from trainer.strategy.cluster.ranks import read_number
    from trainer.strategy.cluster.resolve import resolve_cluster
    from trainer.strategy.cluster.spec import JOBS, Cluster, split_address
    from trainer.strategy.graph_loop import GraphLoop, Runner, Step
    from trainer.strategy.plugin import Detection, MakePieces
    from trainer.values.annotations import (
        Direction,
        Finite,
        Job,
        Names,
        Natural,
        NotNegative,
        Positive,
        Seconds,
        Split,
        Text,
    )
    from trainer.values.configurable import checked, configurable
    from trainer.values.periods import Period, PeriodLike, parse_period

__all__ = [
    "BETWEEN_REPLICAS",
    "Cluster",
    "Detection",
    "Direction",
    "EXIT_START_AGAIN",
    "Entry",
    "Finite",
    "GraphLoop",
    "JOBS",
    "Job",
    "MakePieces",
    "Media",
    "Monitor",
    "Names",
    "Natural",
    "NotNegative",
    "Padded",
    "Period",
    "PeriodLike",
    "Positive",
    "Program",
    "Programs",
    "Row",
    "Runner",
    "Seconds",
    "Section",
    "Split",
    "Step",
    "StrategyOptions",
    "Sums",
    "Text",
    "Ticker",
    "checked",
    "configurable",
    "files",
    "give_up",
    "graph_function",
    "names_in_logs",
    "histogram",
    "lazy_names",
    "nearest",
    "outside_graph",
    "parse_period",
    "peak_memory",
    "read_number",
    "repeat",
    "require",
    "resolve_cluster",
    "run_paths",
    "schema",
    "show",
    "signals",
    "skip_teardown",
    "split_address",
    "storage",
    "write_whole",
]

__getattr__ = lazy_names(__name__)
