"""The strategy central_storage: one set of variables, several devices."""

import tensorflow as tf

from trainer import StrategyPlugin
from trainer.plugin_api import Names, configurable
from trainer_plugins.strategies.devices import logical_devices


@configurable(module="trainer_plugins.strategies")
class CentralStorage(StrategyPlugin):
    """A replica on each device of this host, one set of variables.

    Variables live once, on the CPU (or the only GPU); gradients are summed
    there; synchronous. For a model with variables, such as large
    embeddings, of which each GPU cannot hold a copy, on a host with enough
    memory.

    Args:
        devices: the devices, such as `"gpu:0,gpu:1"`; defaults to all GPUs,
            else all CPUs.

    Raises:
        UserError: a device does not exist.
    """

    name = "central_storage"
    takes_over = tf.distribute.experimental.CentralStorageStrategy

    def __init__(self, *, devices: Names | None = None) -> None:
        self._devices = devices

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        devices = logical_devices(self._devices)
        home = devices[0] if len(devices) == 1 else "cpu:0"
        return tf.distribute.experimental.CentralStorageStrategy(devices, home)
