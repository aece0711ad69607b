"""Runs every case under one strategy and writes the results to a file.

    python -m tests.conformance.worker --strategy=mirrored \
        --virtual_devices=3 --directory=DIR
"""

import argparse
import importlib
import os

from trainer.runtime.process_exit import end_process

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def named(path):
    """The function of `MODULE:FUNCTION`."""
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--virtual_devices", type=int)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--restore", nargs="*")
    parser.add_argument("--extra")
    arguments = parser.parse_args()

    import numpy as np
    import tensorflow as tf

    from trainer.strategy.registry import find_strategy

    from .cases import EXTRA, restore_saved, run_all

    if arguments.virtual_devices:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()]
            * arguments.virtual_devices,
        )
    plugin = find_strategy(arguments.strategy)
    if plugin.serve():
        return 0
    if arguments.restore:
        results = restore_saved(plugin, arguments.restore)
    elif arguments.extra:
        extra = EXTRA.get(arguments.extra) or named(arguments.extra)
        only = [arguments.only] if arguments.only else []
        results = extra(plugin, arguments.directory, *only)
    else:
        results = run_all(plugin, arguments.directory, arguments.only)
    results["num_replicas"] = np.array(plugin.num_replicas)
    results["evaluates_here"] = np.array(plugin.options.evaluates_here)
    if plugin.is_chief:
        np.savez(os.path.join(arguments.directory, "results.npz"), **results)
    plugin.finish()
    plugin.close()
    return 0


if __name__ == "__main__":
    end_process(main())
