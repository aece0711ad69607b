"""Cloud TPUs: a TPU VM, a pod slice, or a TPU over the network."""

import glob
import os
import socket
from typing import Any

import gin
import tensorflow as tf

from trainer import Detection, StrategyPlugin, UserError

_CONNECT_SECONDS = 10.0
_METADATA_HOST = "metadata.google.internal"
_HERE_INSTEAD = (
    "To run here, use --strategy=default, or --strategy=mirrored "
    "--virtual_devices=4."
)


@gin.configurable(module="plugins.strategies")
class TPU(StrategyPlugin):
    """A replica on each TPU core, all in step.

    Variables are mirrored on every core; gradients travel over the chips' own
    interconnect; synchronous. The step is compiled by XLA, so batches have
    one shape: an epoch's last, short batch is left out.

    Args:
        tpu: `"local"` on a TPU VM, the name of a TPU, or `"grpc://host:port"`;
            defaults to the environment's `TPU_NAME`, else `"local"`.

    Raises:
        UserError: there is no such TPU.
    """

    name = "tpu"
    static_shapes = True

    def __init__(self, *, tpu: str | None = None) -> None:
        self._tpu = tpu or os.environ.get("TPU_NAME") or "local"

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits on a TPU VM, or where `TPU_NAME` names a TPU."""
        chips = _local_chips()
        if chips:
            return Detection(rank=40, found=f"{len(chips)} TPU devices")
        if os.environ.get("TPU_NAME"):
            return Detection(
                rank=40, found=f"TPU_NAME={os.environ['TPU_NAME']}"
            )
        return None

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        _require_reachable(self._tpu)
        resolver = self.make_resolver(self._tpu)
        try:
            # A TPU VM's own chips need no connection to a cluster.
            if self._tpu != "local":
                tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (tf.errors.OpError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"The TPU {self._tpu!r} does not start: {reason}\n"
                f"{_HERE_INSTEAD}"
            ) from None
        return tf.distribute.TPUStrategy(resolver)

    @staticmethod
    def make_resolver(tpu: str) -> Any:
        """Finds the TPU; a seam for tests, which have no TPU."""
        return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)

    def why_not_compiled(self) -> str | None:
        """The TPU's own compiler compiles every step already."""
        return "a TPU step is always compiled, without being asked"


def _local_chips() -> list[str]:
    """The device files of this host's TPU chips."""
    chips = glob.glob("/dev/accel[0-9]*")
    # Chips since v5e stand behind VFIO, as other devices do too: the TPU VM's
    # environment tells them apart.
    if not chips and "TPU_WORKER_ID" in os.environ:
        chips = glob.glob("/dev/vfio/[0-9]*")
    return chips


def _require_reachable(tpu: str) -> None:
    """Fails in seconds where TensorFlow would wait for minutes."""
    if tpu == "local":
        if not _local_chips():
            raise UserError(
                "There is no TPU on this host (no /dev/accel* device). On a "
                "Cloud TPU VM use --tpu=local, elsewhere --tpu=NAME or "
                f"--tpu=grpc://HOST:PORT.\n{_HERE_INSTEAD}"
            )
        return
    if tpu.startswith("grpc://"):
        host, _, port = tpu.removeprefix("grpc://").partition(":")
        if not port.isdigit():
            raise UserError(
                f"--tpu={tpu} has no port. Write grpc://HOST:PORT, such as "
                "grpc://10.0.0.2:8470."
            )
    else:
        host, port = _METADATA_HOST, "80"
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"--tpu={tpu} cannot be reached: {host}:{port}: {error}.\n"
            f"{_HERE_INSTEAD}"
        ) from None
