"""Plugins that come in the box.

The names that users need. They are imported at their first use, so that a
command that needs none of them does not load TensorFlow.
"""

from typing import TYPE_CHECKING

from trainer.plugin_api import lazy_names

if TYPE_CHECKING:
    from trainer_plugins.callbacks.checkpoint import Checkpoint as Checkpoint
    from trainer_plugins.callbacks.early_stopping import (
        EarlyStopping as EarlyStopping,
    )
    from trainer_plugins.callbacks.export import Export as Export
    from trainer_plugins.callbacks.preemption import Preemption as Preemption
    from trainer_plugins.callbacks.progress import Progress as Progress
    from trainer_plugins.callbacks.watchdog import Watchdog as Watchdog
    from trainer_plugins.loggers.csv_file import CSV as CSV
    from trainer_plugins.loggers.json_lines import JsonLines as JsonLines
    from trainer_plugins.loggers.mlflow_runs import MLflow as MLflow
    from trainer_plugins.loggers.tensorboard import TensorBoard as TensorBoard
    from trainer_plugins.loggers.wandb_runs import WandB as WandB
    from trainer_plugins.strategies.central_storage import (
        CentralStorage as CentralStorage,
    )
    from trainer_plugins.strategies.default import Default as Default
    from trainer_plugins.strategies.mirrored import Mirrored as Mirrored
    from trainer_plugins.strategies.multi_worker_mirrored import (
        MultiWorkerMirrored as MultiWorkerMirrored,
    )
    from trainer_plugins.strategies.one_device import OneDevice as OneDevice
    from trainer_plugins.strategies.parameter_server import (
        ParameterServer as ParameterServer,
    )
    from trainer_plugins.strategies.tpu.strategy import TPU as TPU

__getattr__, __dir__ = lazy_names(__name__)
