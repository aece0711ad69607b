"""The devices that this process can use.

Most of this must not initialize TensorFlow's runtime, after which strategies of
several processes can no longer be created, nor devices be hidden.
"""

import os
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from trainer import UserError
from trainer.plugin_api import Cluster, nearest, split_address


def count(kind: str) -> int:
    """Returns how many logical devices of a kind TensorFlow has, or will have.

    Args:
        kind: `"GPU"` or `"CPU"`.
    """
    return sum(
        len(tf.config.get_logical_device_configuration(device) or [device])
        for device in tf.config.get_visible_devices(kind)
    )


def count_devices() -> int:
    """Returns the number of GPUs, or else of logical CPUs."""
    return count("GPU") or count("CPU")


def warn_of_idle_gpus(used: int = 1) -> None:
    """Warns if a strategy leaves GPUs of this host unused."""
    if (there := count("GPU")) > used:
        logging.warning(
            "%d of the %d GPUs here are not used. --strategy=mirrored uses all "
            "of them.",
            there - used,
            there,
        )


def take_share(cluster: Cluster, jobs: Sequence[str]) -> None:
    """Leaves this task its part of the GPUs that all tasks of its host see.

    Slurm and the launcher start several tasks on one host, and each of them
    would otherwise take every GPU, and all of its memory.

    Args:
        cluster: all tasks; those of one host have its name in their address.
        jobs: those that compute; other tasks get none.

    Raises:
        UserError: the tasks of this host cannot share its GPUs evenly.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if _are_dealt_out(cluster):
        return
    tasks = dict(cluster.tasks(*jobs))
    if cluster.name not in tasks:
        tf.config.set_visible_devices([], "GPU")
        return
    host, _ = split_address(tasks[cluster.name])
    here = [
        name
        for name, address in tasks.items()
        if split_address(address)[0] == host
    ]
    share, left = divmod(len(gpus), len(here))
    if left:
        raise UserError(
            f"{', '.join(here)} are on {host} and cannot share its {len(gpus)} "
            "GPUs evenly. Start as many tasks as there are GPUs, one for all "
            "of them, or set CUDA_VISIBLE_DEVICES for each task; an empty "
            "value trains on the CPU."
        )
    first = here.index(cluster.name) * share
    tf.config.set_visible_devices(gpus[first : first + share], "GPU")


def _are_dealt_out(cluster: Cluster) -> bool:
    """Returns whether the environment names the GPUs of this very process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return False
    # Slurm names all that the step has on the node, unless it was told to bind
    # them to tasks; srun's own options for that are in no variable.
    on_node = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdecimal():
        return len(named.split(",")) < int(on_node)
    return cluster.source != "Slurm" or "SLURM_GPUS_PER_TASK" in os.environ


def logical_devices(names: str | Sequence[str] | None = None) -> list[str]:
    """Returns this process's devices in short form, such as `"gpu:0"`.

    Args:
        names: the devices to use, as a sequence or separated by commas;
            `None` means all GPUs, or all CPUs where there is no GPU.

    GPUs that are not named are hidden, if TensorFlow has not yet begun to use
    them: it takes the memory of all that it sees. Those that are left are
    numbered from 0.

    Returns:
        Device names that `tf.distribute` takes.

    Raises:
        UserError: a named device does not exist.
    """
    existing = {
        kind: [f"{kind.lower()}:{i}" for i in range(count(kind))]
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
    return _without_others(wanted) or wanted


def _without_others(wanted: Sequence[str]) -> list[str] | None:
    """Hides the GPUs that are not wanted; `None` where that is not possible."""
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) != count("GPU") or not all("gpu" in name for name in wanted):
        return None
    numbers = sorted(int(name.partition(":")[2]) for name in wanted)
    try:
        tf.config.set_visible_devices([gpus[n] for n in numbers], "GPU")
    except RuntimeError:
        return None  # TensorFlow is running, with all of them.
    return [f"gpu:{i}" for i in range(len(numbers))]
