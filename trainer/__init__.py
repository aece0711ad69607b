"""A Keras-native Trainer framework with plugins.

The names that users need; `trainer.plugin_api` has those of plugin authors.
They are imported at their first use, so that `python -m trainer --help`
answers without loading TensorFlow. TensorFlow is then loaded quietly.
"""

from typing import TYPE_CHECKING

from trainer.runtime.import_tensorflow import load_tensorflow
from trainer.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from trainer.data.batches import Batches as Batches
    from trainer.data.dataset_batches import DatasetBatches as DatasetBatches
    from trainer.data.examples import ArrayExamples as ArrayExamples
    from trainer.data.examples import Examples as Examples
    from trainer.data.indexed_batches import IndexedBatches as IndexedBatches
    from trainer.errors import Diverged as Diverged
    from trainer.errors import StartAgain as StartAgain
    from trainer.errors import UserError as UserError
    from trainer.experiment import run as run
    from trainer.loop.callback import Callback as Callback
    from trainer.loop.logger import Logger as Logger
    from trainer.step.divergence_guard import Guard as Guard
    from trainer.step.metrics.factories import additive as additive
    from trainer.step.metrics.states import WholeSetMetric as WholeSetMetric
    from trainer.step.reductions.sums import Average as Average
    from trainer.step.reductions.sums import average as average
    from trainer.strategy.plugin import StrategyPlugin as StrategyPlugin
    from trainer.trainer import Trainer as Trainer


def _load_tensorflow(home: str) -> None:
    # What the launcher imports must stay light.
    if home != "trainer.errors":
        load_tensorflow()


__getattr__, __dir__ = lazy_names(__name__, before=_load_tensorflow)
