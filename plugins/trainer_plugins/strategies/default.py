"""The strategy default: no distribution, TensorFlow places everything."""

from typing import Any

import tensorflow as tf

from trainer import StrategyPlugin
from trainer.plugin_api import (
    Detection,
    MakeDataset,
    StrategyOptions,
    configurable,
)
from trainer_plugins.strategies.devices import (
    logical_devices,
    warn_of_idle_gpus,
)


@configurable(module="trainer_plugins.strategies")
class Default(StrategyPlugin):
    """One replica, on a GPU if there is one, else on the CPU.

    Variables live on that device; gradients do not travel; synchronous. For a
    laptop, a notebook, or a first try.
    """

    name = "default"
    takes_over = type(tf.distribute.get_strategy())
    options = StrategyOptions(takes_stacks=True)

    @classmethod
    def detect(cls) -> Detection:
        """Fits everywhere, with the lowest rank."""
        return Detection(rank=0, found="one device")

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        warn_of_idle_gpus()
        return tf.distribute.get_strategy()

    def devices(self) -> list[str]:
        """See `StrategyPlugin.devices`."""
        return logical_devices()[:1]

    def distribute(self, make_dataset: MakeDataset, *, training: bool) -> Any:
        """See `StrategyPlugin.distribute`."""
        return iter(make_dataset(range(1), is_kept=True))
