"""Runs `python -m trainer --strategy=tpu` with stand-ins for a TPU's calls.

    python -m tests.plugins.tpu.order_worker TPU MODEL_DIR

Writes a line of JSON to stdout: the calls in their order, each with whether
TensorFlow had run an operation by then, the versions, and the exit code.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.eager import context

from trainer.cli.main import main

CALLS = []


def stand_in(owner, name, result):
    # The real one is there: TensorFlow has not moved it.
    assert callable(getattr(owner, name))

    def call(*arguments, **options):
        # Devices exist, and are fixed, from the first operation on.
        begun = context.context()._context_handle is not None
        CALLS.append([name, begun])
        return result()

    setattr(owner, name, call)


def stand_ins():
    cluster_resolver = tf.distribute.cluster_resolver
    stand_in(cluster_resolver, "TPUClusterResolver", lambda: "resolver")
    stand_in(tf.config, "experimental_connect_to_cluster", lambda: None)
    experimental = tf.tpu.experimental
    stand_in(experimental, "initialize_tpu_system", lambda: None)
    stand_in(experimental, "shutdown_tpu_system", lambda: None)
    one = tf.distribute.OneDeviceStrategy
    stand_in(tf.distribute, "TPUStrategy", lambda: one("cpu:0"))


if __name__ == "__main__":
    tpu, model_dir = sys.argv[1:]
    stand_ins()
    from trainer_plugins.strategies.tpu import host

    host.require_tpu = host.local_chips = lambda *_: ["/dev/accel0"]
    host.holders = list
    code = main(
        [
            "--gin_file=tests/faults/faults.gin",
            f"--model_dir={model_dir}",
            "--strategy=tpu",
            f"--tpu={tpu}",
            "--train_steps=2",
        ]
    )
    said = {"calls": CALLS, "code": code, "tensorflow": tf.__version__}
    sys.stdout.write("\n" + json.dumps(said) + "\n")
