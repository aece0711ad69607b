"""A Keras-native Trainer framework with plugins.

The names that users need; `trainer.plugin_api` has those of plugin authors.
They are imported at their first use, so that `python -m trainer --help`
answers without loading TensorFlow. TensorFlow is then loaded quietly.
"""

from typing import TYPE_CHECKING

from trainer.runtime.import_tensorflow import load_tensorflow
from trainer.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainer.data import (
        ArrayExamples,
        Batches,
        DatasetBatches,
        Examples,
        IndexedBatches,
    )
    from trainer.errors import Diverged, StartAgain, UserError
    from trainer.experiment import run
    from trainer.loop.callback import Callback
    from trainer.loop.logger import Logger
    from trainer.step.divergence_guard import Guard
    from trainer.step.metrics.factories import additive
    from trainer.step.metrics.whole_set import WholeSetMetric
    from trainer.step.reductions.sums import Average, average
    from trainer.strategy.plugin import StrategyPlugin
    from trainer.trainer import Trainer

__all__ = [
    "ArrayExamples",
    "Average",
    "Batches",
    "Callback",
    "DatasetBatches",
    "Diverged",
    "Examples",
    "Guard",
    "IndexedBatches",
    "Logger",
    "StartAgain",
    "StrategyPlugin",
    "Trainer",
    "UserError",
    "WholeSetMetric",
    "additive",
    "average",
    "run",
]


def _load_tensorflow(home: str) -> None:
    # What the launcher imports must stay light.
    if home != "trainer.errors":
        load_tensorflow()


__getattr__ = lazy_names(__name__, before=_load_tensorflow)
