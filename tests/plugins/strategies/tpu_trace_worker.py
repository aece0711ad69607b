"""Traces every graph of a run by TensorFlow's own TPUStrategy.

    python -m tests.plugins.strategies.tpu_trace_worker CORES

No chip is needed to build a graph: the stand-in resolver lists virtual CPUs
as the cores. Writes a line of JSON for each case to stdout.
"""

import json
import os
import sys
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from tests.conformance import models
from tests.conformance.cases import in_order
from trainer import Guard, Trainer
from trainer.loop.loop import Loop
from trainer.options import RunOptions
from trainer_experiments.contrastive import SimCLR
from trainer_plugins import TPU

CORES = int(sys.argv[1])


class Core(str):
    """The name of a CPU that stands in for a TPU core."""

    def __contains__(self, part):
        return part == "device:TPU:" or super().__contains__(part)


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    def get_tpu_system_metadata(self):
        prefix = "/job:localhost/replica:0/task:0/device:CPU:"
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=CORES,
            num_hosts=1,
            num_of_cores_per_host=CORES,
            topology=None,
            devices=[
                types.SimpleNamespace(name=Core(f"{prefix}{i}"))
                for i in range(CORES)
            ],
        )


class StandIn(TPU):
    name = "tpu_stand_in"

    def create(self):
        return tf.distribute.TPUStrategy(Resolver(tpu="local"))


def regression(**options):
    return {
        "model": models.regression_model,
        "loss": "mse",
        "optimizer": lambda: keras.optimizers.Adam(global_clipnorm=0.5),
        "metrics": [keras.metrics.MeanAbsoluteError],
        "data": in_order(models.regression_data()),
    } | options


CASES = {
    "plain": regression(),
    "moving_average": regression(ema_momentum=0.9),
    "accumulation": regression(accumulation_steps=2),
    "guard": regression(guard=Guard(max_growth=10.0)),
    "guarded_accumulation": regression(guard=Guard(), accumulation_steps=2),
    "bfloat16": regression(precision="mixed_bfloat16"),
    "dropout": regression(model=models.dropout_model),
    "embedding": {
        "model": models.token_model,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": lambda: keras.optimizers.SGD(0.1),
        "data": in_order(models.token_data()),
    },
    # Evaluated on batches without padding, which a global_loss cannot detect.
    "global_loss": {
        "kind": SimCLR,
        "model": models.views_model,
        "data": in_order(models.views_data().repeat(4, 0)[:48]),
    },
    "auc": {
        "model": models.binary_model,
        "loss": "binary_crossentropy",
        "metrics": [keras.metrics.AUC],
        "data": in_order(models.binary_data()),
    },
}


def of_step(runner):
    """The operations of the traced step, on the cores and on the host."""
    (traced,) = runner._step._list_all_concrete_functions()
    cores, host, padding = set(), [], 0
    for op in traced.graph.get_operations():
        if op.type == "TPUReplicateMetadata":
            padding += len(op.get_attr("padding_map"))
        try:
            cores.add(op.get_attr("_tpu_replicate"))
        except ValueError:
            host.append(op.type)
    return {"programs": len(cores), "padding": padding, "host": host}


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * CORES,
    )
    plugin = StandIn(tpu="local")
    for name, options in CASES.items():
        kind = options.pop("kind", Trainer)
        trainer = kind(**options, batch_size=16, strategy=plugin)
        run = trainer.new_run()
        Loop(run, RunOptions(train_steps=10), evaluate=True).trace()
        train = run.train_runner
        evaluation = run.evaluator(run.batches("eval")).runner
        (loop,) = train._loop._list_all_concrete_functions()
        result = {
            "name": name,
            "train": of_step(train),
            "eval": of_step(evaluation),
            "loop_results": [
                type(leaf).__name__
                for leaf in tf.nest.flatten(loop.structured_outputs)
            ],
        }
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
