"""The strategy mirrored: replicas on the devices of one host."""

from typing import Literal

import tensorflow as tf

from trainer import StrategyPlugin, UserError
from trainer.plugin_api import Detection, Names, configurable
from trainer_plugins.strategies.devices import count_devices, logical_devices

_ALL_REDUCE = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduce_to_one": tf.distribute.ReductionToOneDevice,
}


@configurable(module="trainer_plugins.strategies")
class Mirrored(StrategyPlugin):
    """A replica on each device of this host, in lockstep.

    Variables are mirrored on every device; gradients travel by all-reduce
    (NCCL between GPUs); synchronous. For several GPUs in one machine, or
    several virtual CPUs to try it out.

    Args:
        devices: the devices, such as `"gpu:0,gpu:1"`; defaults to all GPUs,
            else all CPUs.
        all_reduce: `"auto"`, `"nccl"`, `"hierarchical_copy"` or
            `"reduce_to_one"`; `"auto"` is NCCL on GPUs and `"reduce_to_one"`
            on CPUs.

    Raises:
        UserError: a device or an all-reduce does not exist.
    """

    name = "mirrored"
    takes_over = tf.distribute.MirroredStrategy

    def __init__(
        self,
        *,
        devices: Names | None = None,
        all_reduce: Literal[
            "auto", "nccl", "hierarchical_copy", "reduce_to_one"
        ] = "auto",
    ) -> None:
        self._devices = devices
        self._all_reduce = all_reduce

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits where there are several GPUs, or several virtual devices."""
        count = count_devices()
        if count < 2:
            return None
        return Detection(rank=10, found=f"{count} devices on this host")

    def why_not_compiled(self) -> str | None:
        """See `StrategyPlugin.why_not_compiled`: a device has all it needs."""
        return None

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        devices = logical_devices(self._devices)
        on_gpus = all(device.startswith("gpu") for device in devices)
        kind = self._all_reduce
        # NCCL exists on GPUs only.
        if kind == "auto":
            kind = "nccl" if on_gpus else "reduce_to_one"
        if kind == "nccl" and not on_gpus:
            raise UserError(
                "Mirrored.all_reduce = 'nccl' needs GPUs; the devices are "
                f"{', '.join(devices)}. Valid: auto, hierarchical_copy, "
                "reduce_to_one."
            )
        return tf.distribute.MirroredStrategy(
            devices, cross_device_ops=_ALL_REDUCE[kind]()
        )
