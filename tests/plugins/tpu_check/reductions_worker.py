"""What TPUStrategy reduces in a step, and what its stand-in does.

    python -m tests.plugins.tpu_check.reductions_worker CORES

Writes a line of JSON for each case to stdout: by strategy, the shape and dtype
of every tensor that is summed over replicas.
"""

import json
import sys

import keras
import tensorflow as tf

from tests.plugins.strategies.tpu_trace_worker import (
    CASES,
    CORES,
    StandIn,
    regression,
)
from trainer import Trainer
from trainer.step.trials.prepare import prepare
from trainer.tools.check.programs import RunPrograms
from trainer_plugins.tpu_check import lowering
from trainer_plugins.tpu_check.stand_in import TopologyStrategy


class Topology(StandIn):
    name = "topology_stand_in"

    def create(self):
        return TopologyStrategy(CORES)


def normalized():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )


MORE = {
    "batch_norm": regression(model=normalized),
    "own_batch_norm": regression(model=normalized, sync_batch_norm=False),
}


def reduced(plugin, options):
    options = dict(options)
    kind = options.pop("kind", Trainer)
    trainer = kind(**options, batch_size=16, strategy=plugin)
    trainer.build()
    prepare(trainer.new_run().spec, training=True)
    _, trace = lowering.traced(RunPrograms(trainer).training())
    graphs = [trace.graph]
    found = []
    while graphs:
        graph = graphs.pop()
        graphs += [
            f.graph for f in graph._functions.values() if hasattr(f, "graph")
        ]
        found += [
            f"{op.outputs[0].dtype.name}{op.outputs[0].shape.as_list()}"
            for op in graph.get_operations()
            if op.type in ("CrossReplicaSum", "XlaAllReduce")
        ]
    return sorted(found)


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * CORES,
    )
    real, stand_in = StandIn(tpu="local"), Topology(tpu="local")
    for name, options in (CASES | MORE).items():
        found = {
            "name": name,
            "tpu": reduced(real, options),
            "stand_in": reduced(stand_in, options),
        }
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
