"""How much memory a process has used."""

import resource
import sys

import tensorflow as tf


def peak_memory() -> dict[str, int]:
    """The most memory that this process has had at once, in bytes.

    Returns:
        That of the host as `"host"`, everything included; and that of each
        GPU by its name, such as `"GPU:0"`.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, and others kibibytes.
    found = {"host": peak * (1 if sys.platform == "darwin" else 1024)}
    # TensorFlow tells this of GPUs only.
    for device in tf.config.list_logical_devices("GPU"):
        name = device.name.rpartition("device:")[2]
        found[name] = tf.config.experimental.get_memory_info(name)["peak"]
    return found
