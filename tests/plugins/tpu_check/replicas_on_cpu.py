"""Runs a lowered program on several devices of the CPU, by XLA.

    python -m tests.plugins.tpu_check.replicas_on_cpu DIRECTORY REPLICAS

Reads `program.mlir` and `arguments.npz` (`arr_0`, ...: `[replicas, ...]` each),
writes `results.npz` likewise. The program is the one that the TPU compiler
gets, and the all-reduces in it are made.
"""

import os
import re
import sys

DIRECTORY, REPLICAS = sys.argv[1], int(sys.argv[2])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={REPLICAS}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax._src import compiler  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from jax._src.lib import xla_client  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

from trainer_plugins.tpu_check import libtpu_process  # noqa: E402


def spread(values, devices):
    """An array of which each device has its own row."""
    mesh = jax.sharding.Mesh(np.array(devices), ("replicas",))
    spec = jax.sharding.PartitionSpec("replicas")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    rows = [
        jax.device_put(row, device)
        for row, device in zip(values, devices, strict=True)
    ]
    if not rows[0].shape:
        # A scalar cannot be divided, so it counts as equal everywhere.
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.make_array_from_single_device_arrays((), whole, rows)
    shape = (len(rows) * rows[0].shape[0], *rows[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, sharding, rows)


def main():
    # Not by an environment variable: TensorFlow imports JAX where it can, and
    # a fork of a process that has done so would have read it.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    devices = jax.devices()
    with mlir.make_ir_context():
        with open(os.path.join(DIRECTORY, "program.mlir"), "rb") as file:
            module = ir.Module.parse(file.read())
        libtpu_process.without_copies(module)
        alias = str(module.operation.attributes["mhlo.input_output_alias"])
        made = devices[0].client.compile_and_load(
            module,
            executable_devices=xla_client.DeviceList(tuple(devices)),
            compile_options=compiler.get_compile_options(
                REPLICAS, 1, np.arange(REPLICAS)
            ),
        )
    with np.load(os.path.join(DIRECTORY, "arguments.npz")) as file:
        arguments = [file[f"arr_{i}"] for i in range(len(file.files))]
    results = made.execute_sharded([spread(one, devices) for one in arguments])
    found = results.disassemble_into_single_device_arrays()
    # The new values of variables: by the argument that they replace.
    pairs = re.findall(
        r"parameter_number = (\d+).*?output_index = array<i64: (\d+)>", alias
    )
    np.savez(
        os.path.join(DIRECTORY, "results.npz"),
        **{
            parameter: np.stack([np.asarray(one) for one in found[int(output)]])
            for parameter, output in pairs
        },
    )


if __name__ == "__main__":
    main()
