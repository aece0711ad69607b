"""What test_programs.py runs in processes of their own.

    python -m tests.plugins.tpu.workers traces CORES [CASE ...]
    python -m tests.plugins.tpu.workers step MODEL FOLDER
    python -m tests.plugins.tpu.workers replicas COUNT FOLDER

`traces` builds every graph of a run by TensorFlow's own TPUStrategy, for which
no chip is needed: a resolver lists virtual CPUs as the cores. `step` writes the
program that the TPU compiler would get, its arguments, and what one step on one
device comes to; `replicas` runs that program on several devices of the CPU, by
XLA.
"""

import json
import os
import re
import sys
import types

REPLICAS, BATCH = 4, 32


def stand_ins(cores):
    """TPUStrategy on CPUs, and the strategy that stands in for it."""
    import tensorflow as tf

    from trainer_plugins import TPU
    from trainer_plugins.strategies.tpu.stand_in import TopologyStrategy

    class Core(str):
        """The name of a CPU that stands in for a TPU core."""

        def __contains__(self, part):
            return part == "device:TPU:" or super().__contains__(part)

    class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
        def get_tpu_system_metadata(self):
            prefix = "/job:localhost/replica:0/task:0/device:CPU:"
            return tf.tpu.experimental.TPUSystemMetadata(
                num_cores=cores,
                num_hosts=1,
                num_of_cores_per_host=cores,
                topology=None,
                devices=[
                    types.SimpleNamespace(name=Core(f"{prefix}{i}"))
                    for i in range(cores)
                ],
            )

    class Real(TPU):
        name = "tpu_on_cpus"

        def create(self):
            return tf.distribute.TPUStrategy(Resolver(tpu="local"))

    class Topology(TPU):
        name = "topology_on_cpus"

        def create(self):
            return TopologyStrategy(cores)

    return Real(tpu="local"), Topology(tpu="local")


def cases():
    """The arguments of a Trainer for each case."""
    import keras

    from tests.conformance import models
    from tests.conformance.cases import in_order
    from trainer import Guard
    from trainer_experiments.contrastive import SimCLR

    def normalized():
        return keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )

    def regression(**options):
        return {
            "model": models.regression_model,
            "loss": "mse",
            "optimizer": lambda: keras.optimizers.Adam(global_clipnorm=0.5),
            "metrics": [keras.metrics.MeanAbsoluteError],
            "data": in_order(models.regression_data()),
        } | options

    return {
        "plain": regression(),
        "moving_average": regression(ema_momentum=0.9),
        "accumulation": regression(guard=Guard(), accumulation_steps=2),
        "guard": regression(guard=Guard(max_gradient_norm=10.0)),
        "bfloat16": regression(precision="mixed_bfloat16"),
        "dropout": regression(model=models.dropout_model),
        "batch_norm": regression(model=normalized),
        "own_batch_norm": regression(model=normalized, sync_batch_norm=False),
        "embedding": {
            "model": models.token_model,
            "loss": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
            "optimizer": lambda: keras.optimizers.SGD(0.1),
            "data": in_order(models.token_data()),
        },
        # Evaluated on batches without padding, which a global_loss cannot
        # detect.
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


def reduced(run):
    """The tensors that a step sums over replicas."""
    from trainer.tools.check.programs import RunPrograms
    from trainer_plugins.strategies.tpu import compile as tpu_compiler

    _, trace = tpu_compiler.traced(RunPrograms(run).training())
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


def traces(cores, *names):
    import tensorflow as tf

    from trainer import Trainer
    from trainer.loop.loop import Loop
    from trainer.run_options import RunOptions
    from trainer.step.prepare import prepare

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * int(cores),
    )
    plugins = stand_ins(int(cores))
    for name, options in cases().items():
        if names and name not in names:
            continue
        kind = options.pop("kind", Trainer)
        real, topology = (
            kind(**options, batch_size=16, strategy=plugin)
            for plugin in plugins
        )
        real, topology = real._new_run(), topology._new_run()
        for one in (real, topology):
            prepare(one.spec, training=True)
        sums = {"tpu": reduced(real), "stand_in": reduced(topology)}
        Loop(real, RunOptions(train_steps=10), evaluate=True)._trace()
        (loop,) = real.train_runner._loop._list_all_concrete_functions()
        results = tf.nest.flatten(loop.structured_outputs)
        found = {
            "name": name,
            "train": of_step(real.train_runner),
            "eval": of_step(real.evaluator(real.batches("eval")).runner),
            "loop_results": [type(leaf).__name__ for leaf in results],
            "reduced": sums,
        }
        sys.stdout.write(json.dumps(found) + "\n")


def step(name, folder):
    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import Trainer
    from trainer.step.prepare import prepare
    from trainer.tools.check.programs import RunPrograms
    from trainer_experiments.models import conv_net
    from trainer_plugins import TPU
    from trainer_plugins.strategies.tpu import compile as tpu_compiler

    random = np.random.default_rng(0)
    data = (
        random.random((BATCH, 28, 28, 1), "float32"),
        random.integers(10, size=BATCH),
    )

    def normalized():
        layers = conv_net(filters=4, units=8).layers
        first = [keras.Input((28, 28, 1)), keras.layers.BatchNormalization()]
        return keras.Sequential([*first, *layers])

    def make(strategy):
        """tpu_mnist.gin in float32, on one batch in its order."""
        trainer = Trainer(
            model={"conv_net": conv_net, "normalized": normalized}[name],
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=lambda: keras.optimizers.Adam(0.004, global_clipnorm=1.0),
            metrics=[keras.metrics.SparseCategoricalAccuracy],
            data=lambda split: tf.data.Dataset.from_tensor_slices(data).batch(
                BATCH, drop_remainder=True
            ),
            batch_size=BATCH,
            strategy=strategy,
            jit_compile=False,
        )
        trainer.build()
        return trainer

    trainer, expected = make(TPU(tpu_topology="v5e:2x2")), make("default")
    run = trainer._new_run()
    prepare(run.spec, training=True)
    program = RunPrograms(run).training()
    lowered = tpu_compiler.lower(program)
    assert len(lowered.reduced) > 2
    with open(os.path.join(folder, "program.mlir"), "wb") as file:
        file.write(lowered.module)
    _, trace = tpu_compiler.traced(program)
    variables = [
        next(v for v in trace.graph.variables if v.handle is handle)
        for handle in trace.captured_inputs
    ]
    arguments = [part.reshape(REPLICAS, -1, *part.shape[1:]) for part in data]
    arguments += [np.stack([v.numpy()] * REPLICAS) for v in variables]
    np.savez(os.path.join(folder, "arguments.npz"), *arguments)
    expected.train(1)
    # By the number of the argument that holds the variable's old value.
    numbers = {id(v): len(data) + i for i, v in enumerate(variables)}
    pairs = zip(trainer.model.variables, expected.model.variables, strict=True)
    np.savez(
        os.path.join(folder, "expected.npz"),
        **{
            str(numbers[id(own.value)]): other.numpy()
            for own, other in pairs
            if id(own.value) in numbers
        },
    )


def replicas(count, folder):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    from trainer_plugins.strategies.tpu import libtpu_process

    # Not by an environment variable: TensorFlow imports JAX where it can, and
    # a fork of a process that has done so would have read it.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("replicas",))

    def spread(values):
        """An array of which each device has its own row."""
        rows = [
            jax.device_put(row, device)
            for row, device in zip(values, devices, strict=True)
        ]
        # A scalar cannot be divided, so it counts as equal everywhere.
        is_scalar = not rows[0].shape
        spec = jax.sharding.PartitionSpec(*[] if is_scalar else ["replicas"])
        first = () if is_scalar else (len(rows) * rows[0].shape[0],)
        return jax.make_array_from_single_device_arrays(
            (*first, *rows[0].shape[1:]),
            jax.sharding.NamedSharding(mesh, spec),
            rows,
        )

    with mlir.make_ir_context():
        with open(os.path.join(folder, "program.mlir"), "rb") as file:
            module = ir.Module.parse(file.read())
        libtpu_process.without_copies(module)
        alias = str(module.operation.attributes["mhlo.input_output_alias"])
        made = devices[0].client.compile_and_load(
            module,
            executable_devices=xla_client.DeviceList(tuple(devices)),
            compile_options=compiler.get_compile_options(
                int(count), 1, np.arange(int(count))
            ),
        )
    with np.load(os.path.join(folder, "arguments.npz")) as file:
        arguments = [file[f"arr_{i}"] for i in range(len(file.files))]
    results = made.execute_sharded([spread(one) for one in arguments])
    found = results.disassemble_into_single_device_arrays()
    # The new values of variables: by the argument that they replace.
    pairs = re.findall(
        r"parameter_number = (\d+).*?output_index = array<i64: (\d+)>", alias
    )
    np.savez(
        os.path.join(folder, "results.npz"),
        **{
            parameter: np.stack([np.asarray(one) for one in found[int(output)]])
            for parameter, output in pairs
        },
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    work = {"traces": traces, "step": step, "replicas": replicas}[sys.argv[1]]
    work(*sys.argv[2:])
