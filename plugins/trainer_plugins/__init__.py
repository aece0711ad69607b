"""Plugins that come in the box.

The names that users need. They are imported at their first use, so that a
command that needs none of them does not load TensorFlow.
"""

from typing import TYPE_CHECKING

from trainer.plugin_api import lazy_names

if TYPE_CHECKING:
    from trainer_plugins.callbacks.checkpoint import Checkpoint
    from trainer_plugins.callbacks.early_stopping import EarlyStopping
    from trainer_plugins.callbacks.export import Export, export_model
    from trainer_plugins.callbacks.preemption import Preemption
    from trainer_plugins.callbacks.progress import Progress
    from trainer_plugins.callbacks.watchdog import Watchdog
    from trainer_plugins.loggers.csv_file import CSV
    from trainer_plugins.loggers.json_lines import JsonLines
    from trainer_plugins.loggers.mlflow_runs import MLflow
    from trainer_plugins.loggers.tensorboard import TensorBoard
    from trainer_plugins.loggers.wandb_runs import WandB
    from trainer_plugins.strategies.central_storage import CentralStorage
    from trainer_plugins.strategies.default import Default
    from trainer_plugins.strategies.mirrored import Mirrored
    from trainer_plugins.strategies.multi_worker_mirrored import (
        MultiWorkerMirrored,
    )
    from trainer_plugins.strategies.one_device import OneDevice
    from trainer_plugins.strategies.parameter_server import ParameterServer
    from trainer_plugins.strategies.tpu.strategy import TPU

__all__ = [
    "CSV",
    "CentralStorage",
    "Checkpoint",
    "Default",
    "EarlyStopping",
    "Export",
    "JsonLines",
    "MLflow",
    "Mirrored",
    "MultiWorkerMirrored",
    "OneDevice",
    "ParameterServer",
    "Preemption",
    "Progress",
    "TPU",
    "TensorBoard",
    "WandB",
    "Watchdog",
    "export_model",
]

__getattr__ = lazy_names(__name__)
