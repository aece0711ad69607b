"""A Keras-native Trainer framework with plugins.

The names below are imported on first use, so that `python -m trainer --help`
answers without loading TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.callback import Callback
    from trainer.data import (
        ArrayExamples,
        Batches,
        DatasetBatches,
        Examples,
        IndexedBatches,
    )
    from trainer.ending import give_up, last_words
    from trainer.errors import (
        EXIT_START_AGAIN,
        Diverged,
        StartAgain,
        UserError,
        nearest,
        outside_graph,
    )
    from trainer.experiment import run
    from trainer.monitor import Monitor
    from trainer.period import Period, parse_period
    from trainer.step.average import Average, average
    from trainer.step.guard import Guard
    from trainer.strategy import Detection, StrategyPlugin
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
    "Guard": "trainer.step.guard",
    "IndexedBatches": "trainer.data",
    "Monitor": "trainer.monitor",
    "Period": "trainer.period",
    "StartAgain": "trainer.errors",
    "StrategyPlugin": "trainer.strategy",
    "Trainer": "trainer.trainer",
    "UserError": "trainer.errors",
    "average": "trainer.step.average",
    "give_up": "trainer.ending",
    "last_words": "trainer.ending",
    "nearest": "trainer.errors",
    "outside_graph": "trainer.errors",
    "parse_period": "trainer.period",
    "run": "trainer.experiment",
}

__all__ = [
    "EXIT_START_AGAIN",
    "ArrayExamples",
    "Average",
    "Batches",
    "Callback",
    "DatasetBatches",
    "Detection",
    "Diverged",
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
    "give_up",
    "last_words",
    "nearest",
    "outside_graph",
    "parse_period",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
