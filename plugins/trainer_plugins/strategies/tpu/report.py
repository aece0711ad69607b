"""The report of a check for a TPU slice: whether a run compiles and fits."""

import tensorflow as tf

from trainer.plugin_api import Programs, Row, Section
from trainer_plugins.strategies.tpu.compile import (
    Compiled,
    Lowered,
    compile_for,
    lower,
)
from trainer_plugins.strategies.tpu.libtpu_process import TESTED
from trainer_plugins.strategies.tpu.topology import Topology

_DIFFERENT = (
    "Differences from TPUStrategy: TensorFlow lowers the step for its CPU "
    "platform, which makes different random bits and does not pad. There is no "
    "tpu_rewrite and no sharded weight update. The step counter and averages "
    "are updated in the same program. The compiler is that of libtpu "
    f"{TESTED['libtpu']}, not the one on the TPU VM.",
)


def compile_all(programs: Programs, topology: Topology) -> list[Section]:
    """Compiles the training step, the evaluation step and the export.

    Raises:
        UserError: one of them cannot be compiled, or does not fit.
    """
    sections: list[Section] = []
    # Each is made when its turn comes: an error of the first is said first.
    for make in (programs.training, programs.evaluation, programs.serving):
        program = make()
        lowered = lower(program)
        made = compile_for(
            topology, lowered, name=program.name, replicas=program.replicas
        )
        rows = _program(topology, lowered, made)
        title = f"{program.name} on {topology}"
        sections.append(Section(title, rows, notes=_loops(made)))
    memory = topology.chip.hbm_bytes
    rows = [
        Row("chips", topology.chips, note="a replica on each"),
        Row("memory of a chip", memory, "bytes", "for programs"),
        Row("TensorFlow", tf.__version__, note="lowers the programs"),
    ]
    return [Section(f"TPU {topology}", rows, notes=_DIFFERENT), *sections]


def _program(topology: Topology, lowered: Lowered, made: Compiled) -> list[Row]:
    """The memory and operations of a program, per chip."""
    tensors = (
        f"{len(lowered.reduced)} tensors, gradients and logs; "
        f"{made.all_reduces} all-reduces in the compiled program"
    )
    return [
        Row("compiles", True),
        Row("live", made.live_bytes, "bytes"),
        Row("of memory", 100 * made.live_bytes / topology.chip.hbm_bytes, "%"),
        Row("arguments", made.argument, "bytes"),
        Row("temporary", made.temp, "bytes"),
        Row("FLOP", made.flops, "FLOP"),
        Row("accessed", made.bytes_accessed, "bytes"),
        Row("reduced bytes", sum(lowered.reduced), "bytes", tensors),
    ]


def _loops(made: Compiled) -> tuple[str, ...]:
    if not made.loops:
        return ()
    return (
        f"It has {made.loops} loops, and one pass of each is counted: FLOP and "
        "accessed bytes are too low.",
    )
