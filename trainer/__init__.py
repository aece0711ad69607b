"""A Keras-native Trainer framework with plugins.

The names below are imported on first use, so that `python -m trainer --help`
answers without loading TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer import checkpoints, files, schema, state
    from trainer.callback import Callback
    from trainer.checks import require_positive
    from trainer.data import (
        ArrayExamples,
        Batches,
        DatasetBatches,
        Examples,
        IndexedBatches,
        Padded,
    )
    from trainer.ending import (
        end_process,
        give_up,
        last_words,
        skip_teardown,
    )
    from trainer.errors import (
        EXIT_START_AGAIN,
        Diverged,
        StartAgain,
        UserError,
        nearest,
        outside_graph,
    )
    from trainer.experiment import run
    from trainer.files import REFUSALS, write_whole
    from trainer.graph import graph_function, repeat
    from trainer.monitor import Monitor
    from trainer.period import Period, Ticker, parse_period
    from trainer.staging import Staging
    from trainer.step.average import Average, average
    from trainer.step.guard import Guard
    from trainer.step.sums import Sums
    from trainer.strategy import (
        Detection,
        GraphLoop,
        MakePieces,
        Runner,
        Step,
        StrategyPlugin,
    )
    from trainer.trainer import Trainer

_HOMES = {
    "ArrayExamples": "trainer.data",
    "Average": "trainer.step.average",
    "Batches": "trainer.data",
    "Callback": "trainer.callback",
    "DatasetBatches": "trainer.data",
    "Detection": "trainer.strategy",
    "Diverged": "trainer.errors",
    "EXIT_START_AGAIN": "trainer.errors",
    "Examples": "trainer.data",
    "GraphLoop": "trainer.strategy",
    "Guard": "trainer.step.guard",
    "IndexedBatches": "trainer.data",
    "MakePieces": "trainer.strategy",
    "Monitor": "trainer.monitor",
    "Padded": "trainer.data",
    "Period": "trainer.period",
    "REFUSALS": "trainer.files",
    "Runner": "trainer.strategy",
    "Staging": "trainer.staging",
    "StartAgain": "trainer.errors",
    "Step": "trainer.strategy",
    "StrategyPlugin": "trainer.strategy",
    "Sums": "trainer.step.sums",
    "Ticker": "trainer.period",
    "Trainer": "trainer.trainer",
    "UserError": "trainer.errors",
    "average": "trainer.step.average",
    "checkpoints": "trainer.checkpoints",
    "end_process": "trainer.ending",
    "files": "trainer.files",
    "give_up": "trainer.ending",
    "last_words": "trainer.ending",
    "graph_function": "trainer.graph",
    "nearest": "trainer.errors",
    "outside_graph": "trainer.errors",
    "parse_period": "trainer.period",
    "repeat": "trainer.graph",
    "require_positive": "trainer.checks",
    "run": "trainer.experiment",
    "schema": "trainer.schema",
    "skip_teardown": "trainer.ending",
    "state": "trainer.state",
    "write_whole": "trainer.files",
}

__all__ = [
    "ArrayExamples",
    "Average",
    "Batches",
    "Callback",
    "DatasetBatches",
    "Detection",
    "Diverged",
    "EXIT_START_AGAIN",
    "Examples",
    "Guard",
    "IndexedBatches",
    "Monitor",
    "Period",
    "StartAgain",
    "StrategyPlugin",
    "Trainer",
    "UserError",
    "average",
    "end_process",
    "skip_teardown",
    "give_up",
    "graph_function",
    "last_words",
    "nearest",
    "outside_graph",
    "parse_period",
    "run",
    "GraphLoop",
    "MakePieces",
    "Padded",
    "REFUSALS",
    "Runner",
    "Staging",
    "Step",
    "Sums",
    "Ticker",
    "checkpoints",
    "files",
    "repeat",
    "require_positive",
    "schema",
    "state",
    "write_whole",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if home.__name__ == f"trainer.{name}" else getattr(home, name)
