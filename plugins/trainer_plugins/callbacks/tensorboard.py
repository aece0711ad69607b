"""The place of `TensorBoard` before `trainer_plugins.loggers` was there."""

from trainer_plugins.loggers.tensorboard import TensorBoard as TensorBoard
