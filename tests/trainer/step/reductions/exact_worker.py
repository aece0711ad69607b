"""Trains small models under strategies with up to three virtual CPUs.

    python -m tests.trainer.step.reductions.exact_worker MODULE \
        [CASE.STRATEGY ...] DIR

runs each function of MODULE's `CASES` under the strategies named there, but
for those that are named here, and writes what it returns to DIR/results.npz,
as `case.strategy.key`.
"""

import importlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from trainer_plugins import CentralStorage, Default, Mirrored, OneDevice

TWO, THREE = "cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2"
STRATEGIES = {
    "default": Default,
    "one_device": OneDevice,
    "mirrored_2": lambda: Mirrored(devices=TWO),
    "mirrored_3": lambda: Mirrored(devices=THREE),
    "central_storage_2": lambda: CentralStorage(devices=TWO),
}


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    module, *left_out, directory = sys.argv[1:]
    cases = importlib.import_module(module).CASES
    results = {}
    for case, names in cases.items():
        for name in names:
            if f"{case.__name__}.{name}" in left_out:
                continue
            keras.backend.clear_session(free_memory=False)
            for key, value in case(STRATEGIES[name]()).items():
                results[f"{case.__name__}.{name}.{key}"] = np.asarray(value)
    np.savez(os.path.join(directory, "results.npz"), **results)


if __name__ == "__main__":
    main()
