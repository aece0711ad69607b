"""What a check says of a run on a TPU slice: compiled, measured, estimated."""

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

_ASSUMED = (
    "Assumed: published peak figures of a chip; of memory, only what must be "
    "read or written in any case: variables, inputs and results, each once.",
    "The all-reduce is a ring over all chips, 2 (n - 1) / n of the bytes over "
    "the links that a chip has within this slice, as if its ends were linked "
    "to each other, without latency.",
    "All of these overlap in the shortest step, the longest of the three. A "
    "real one takes longer: intermediate results, reading data and the host's "
    "work are not counted.",
)
_DIFFERENT = (
    "Not as TPUStrategy does it: TensorFlow lowers the step for its CPU "
    "platform, which makes other bits of random numbers and pads nothing; "
    "there is no tpu_rewrite and no sharded weight update; the step counter "
    "and averages are updated in the same program; and the compiler is that of "
    f"libtpu {TESTED['libtpu']}, not the one on the TPU VM.",
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
        rows, notes = _program(topology, made), _loops(made)
        if not sections:
            rows += _step(topology, programs.batch_size, lowered, made)
            notes += _ASSUMED
        title = f"{program.name} on {topology}"
        sections.append(Section(title, rows, notes=notes))
    chip = topology.chip
    rows = [
        Row("chips", topology.chips, note="a replica on each"),
        Row("memory of a chip", chip.hbm_bytes, "bytes", "for programs"),
        Row("memory bandwidth", chip.hbm_bytes_per_second, "bytes/s"),
        Row("peak in bfloat16", chip.flops, "FLOP/s"),
        Row("link bandwidth", chip.link_bytes_per_second, "bytes/s"),
        Row("TensorFlow", tf.__version__, note="lowers the programs"),
    ]
    return [Section(f"TPU {topology}", rows, notes=_DIFFERENT), *sections]


def _program(topology: Topology, made: Compiled) -> list[Row]:
    """What a program takes, per chip."""
    return [
        Row("compiles", True),
        Row("live", made.live_bytes, "bytes"),
        Row("of memory", 100 * made.live_bytes / topology.chip.hbm_bytes, "%"),
        Row("arguments", made.argument, "bytes"),
        Row("temporary", made.temp, "bytes"),
        Row("FLOP", made.flops, "FLOP"),
        Row("accessed", made.bytes_accessed, "bytes"),
    ]


def _step(
    topology: Topology, batch_size: int, lowered: Lowered, made: Compiled
) -> list[Row]:
    """What no step can be quicker than, and what its all-reduce costs."""
    computing = made.flops / topology.chip.flops
    # Of a table, a step may read a few rows: the compiler's count is then less.
    moved = min(made.argument + made.output, made.bytes_accessed)
    memory = moved / topology.chip.hbm_bytes_per_second
    reduced = sum(lowered.reduced)
    reducing = all_reduce_seconds(topology, reduced)
    least, bound = max(
        (computing, "computing"), (memory, "memory"), (reducing, "all-reduce")
    )
    tensors = (
        f"{len(lowered.reduced)} tensors, gradients and logs; "
        f"{made.all_reduces} all-reduces in the compiled program"
    )
    share = 100 * computing / least if least else 0.0
    return [
        Row("computing time", computing, "s", "FLOP / peak"),
        Row("memory time", memory, "s", "what must move / bandwidth"),
        Row("reduced bytes", reduced, "bytes", tensors),
        Row("all-reduce time", reducing, "s", "ring"),
        Row("step time, at least", least, "s", f"bound by {bound}"),
        Row("utilization, at most", share, "%", "of the peak"),
        Row("steps a second, at most", 1 / least if least else None, "steps/s"),
        Row(
            "examples a second, at most",
            batch_size / least if least else None,
            "examples/s",
            "all chips together",
        ),
    ]


def all_reduce_seconds(topology: Topology, reduced: int) -> float:
    """How long a ring over a slice takes to sum up bytes of each chip."""
    sides = [int(side) for side in topology.sides.split("x")]
    # A chip has two neighbours along each dimension, and at the end of a slice
    # of two only one.
    used = sum(min(side - 1, 2) for side in sides)
    if not used:
        return 0.0
    chip, count = topology.chip, topology.chips
    bandwidth = chip.link_bytes_per_second * used / (2 * chip.dimensions)
    return 2 * (count - 1) / count * reduced / bandwidth


def _loops(made: Compiled) -> tuple[str, ...]:
    if not made.loops:
        return ()
    return (
        f"It has {made.loops} loops, of each of which one pass "
        "is counted: FLOP and accessed bytes are too low.",
    )
