"""The devices that this process can use."""

from collections.abc import Sequence

import tensorflow as tf

from trainer import UserError
from trainer.plugin_api import nearest


def count_devices() -> int:
    """Returns the number of GPUs, or else of logical CPUs.

    Does not initialize TensorFlow's runtime, after which some strategies can
    no longer be created.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return len(gpus)
    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu) or [cpu])


def logical_devices(names: str | Sequence[str] | None = None) -> list[str]:
    """Returns this process's devices in short form, such as `"gpu:0"`.

    Args:
        names: the devices to use, as a sequence or separated by commas;
            `None` means all GPUs, or all CPUs where there is no GPU.

    Returns:
        Device names that `tf.distribute` takes.

    Raises:
        UserError: a named device does not exist.
    """
    existing = {
        kind: [
            f"{kind.lower()}:{i}"
            for i in range(len(tf.config.list_logical_devices(kind)))
        ]
        for kind in ("GPU", "CPU")
    }
    if not names:
        return existing["GPU"] or existing["CPU"]
    wanted = names.split(",") if isinstance(names, str) else list(names)
    # Accept `GPU:0`, `/gpu:0` and `/device:GPU:0`, which TensorFlow prints.
    wanted = [name.strip().lower().removeprefix("/") for name in wanted]
    wanted = [name.removeprefix("device:") for name in wanted]
    valid = existing["GPU"] + existing["CPU"]
    for name in wanted:
        if name not in valid:
            raise UserError(
                f"There is no device {name!r} here. {nearest(name, valid)}\n"
                "--virtual_devices=N splits the CPU into N devices."
            )
    if len(set(wanted)) < len(wanted):
        raise UserError(f"A device is named twice: {', '.join(wanted)}.")
    return wanted
