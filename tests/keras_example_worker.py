"""Runs an example on two virtual devices, and writes how it ended.

python -m tests.keras_example_worker SCRIPT DIRECTORY
"""

import os
import runpy
import sys

import numpy as np
import tensorflow as tf

from trainer import UserError


def end_of(script):
    """Runs a script.

    Returns:
        The history's lists by name, and the model's weights in order.
    """
    names = runpy.run_path(str(script))
    model = names.get("model") or names["autoencoder"]
    weights = model.get_weights()
    history = {k: np.array(v) for k, v in names["history"].history.items()}
    return history | {f"weight {i}": w for i, w in enumerate(weights)}


def main(script, directory):
    """Writes `results.npz`, with the sentence if the Trainer refuses."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)
    try:
        found = end_of(script)
    except UserError as error:
        found = {"refused": np.array(str(error))}
    np.savez(os.path.join(directory, "results.npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
