"""The strategy one_device: everything on one named device."""

import tensorflow as tf

from trainer import StrategyPlugin, UserError
from trainer.plugin_api import Names, StrategyOptions, configurable
from trainer_plugins.strategies.devices import (
    logical_devices,
    warn_of_idle_gpus,
)


@configurable(module="trainer_plugins.strategies")
class OneDevice(StrategyPlugin):
    """One replica on one device that you name.

    Variables live on that device; gradients do not travel; synchronous. For
    pinning a run to one of several GPUs, or for trying a distributed run with
    one replica.

    Args:
        devices: one device, such as `"gpu:1"`; defaults to the first GPU,
            else the CPU.

    Raises:
        UserError: there is no such device, or more than one is named.
    """

    name = "one_device"
    takes_over = tf.distribute.OneDeviceStrategy
    options = StrategyOptions(takes_stacks=True)

    def __init__(self, *, devices: Names | None = None) -> None:
        self._devices = devices

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        found = logical_devices(self._devices)
        if self._devices is not None and len(found) != 1:
            raise UserError(
                f"The strategy one_device takes one device, not {len(found)}: "
                f"{', '.join(found)}. For several use --strategy=mirrored."
            )
        if self._devices is None:
            warn_of_idle_gpus()
        return tf.distribute.OneDeviceStrategy(found[0])
