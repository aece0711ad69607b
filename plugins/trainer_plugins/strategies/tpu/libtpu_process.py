"""Compiles StableHLO for a TPU topology, in a process of its own.

    python -m MODULE TOPOLOGY OPTIONS REPLICAS FILE

Every use of the unstable interfaces of JAX and libtpu is in this one file,
which imports neither TensorFlow nor the Trainer. It writes one line of JSON to
standard output: `{"error": ..., "kind": ...}`, or what the compiler reports.
"""

import importlib.metadata
import json
import os
import re
import sys
from typing import Any

# The versions that the calls below were tested with, as in setup.cfg.
TESTED = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.52"}
INSTALL = "python -m pip install 'keras-trainer-plugins[tpu-check]'"
# In a compiled program's text: `%name = (f32[8,2]{1,0}, f32[]) all-reduce(`.
_ALL_REDUCE = re.compile(r" all-reduce(?:-start)?\(")
_LOOP = re.compile(r" while\(")
_MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def why_not_here() -> str | None:
    """Why nothing can be compiled in this environment; `None` if it can."""
    for package, tested in TESTED.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != tested:
            return (
                f"--tpu_topology needs {package} {tested}, but {found} "
                "is installed: the interfaces change from version to version. "
                f"{INSTALL}"
            )
    return None


def compiled(
    topology: str, options: dict[str, str], replicas: int, path: str
) -> dict[str, Any]:
    """Compiles a module for a topology's first `replicas` chips.

    Args:
        topology: as libtpu names it, such as `"v5e:2x4"`.
        options: of the topology, by name.
        replicas: how many run the program; all chips, or one.
        path: a file with StableHLO bytecode.

    Returns:
        Bytes of memory by kind, the costs of the compiled program, and how many
        all-reduces and loops it has.
    """
    # The topology is all that is wanted of a TPU: no chip is looked for.
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        # Several checks, or one beside a run that has the chips.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    devices: Any = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, **options
    ).devices[:replicas]
    with mlir.make_ir_context(), open(path, "rb") as file:
        module = ir.Module.parse(file.read())
        without_copies(module)
        made = devices[0].client.compile(
            module,
            executable_devices=xla_client.DeviceList(tuple(devices)),
            compile_options=compiler.get_compile_options(
                replicas, 1, np.array([device.id for device in devices])
            ),
        )
    memory = made.get_compiled_memory_stats()
    cost = made.cost_analysis()
    text = made.hlo_modules()[0].to_string()
    return {
        **{name: getattr(memory, f"{name}_size_in_bytes") for name in _MEMORY},
        "flops": cost.get("flops", 0.0),
        "bytes_accessed": cost.get("bytes accessed", 0.0),
        # The compiler has put several of the program's into one.
        "all_reduces": len(_ALL_REDUCE.findall(text)),
        "loops": len(_LOOP.findall(text)),
    }


def without_copies(module: Any) -> None:
    """Replaces operations of TensorFlow that the TPU compiler rejects.

    A `mhlo.copy` only says that a result is not an argument's own memory.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    def replace(block: Any) -> None:
        for op in list(block.operations):
            for region in op.regions:
                for inner in region.blocks:
                    replace(inner)
            if op.operation.name != "mhlo.copy":
                continue
            with ir.InsertionPoint(op), op.location:
                same = stablehlo.ConvertOp(op.results[0].type, op.operands[0])
            op.results[0].replace_all_uses_with(same.result)
            op.operation.erase()

    replace(module.body)


def main() -> None:
    """Compiles one module, and writes the result."""
    topology, options, replicas, path = sys.argv[1:]
    # libtpu writes to standard output, too: the answer has the real one.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        found = compiled(topology, json.loads(options), int(replicas), path)
    # Every error concerns this module: the parent makes an error message of it.
    except Exception as error:
        found = {"error": str(error), "kind": type(error).__name__}
    answer.write(json.dumps(found) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()
