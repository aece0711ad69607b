"""Hands a lowered program to the TPU compiler, and reads what it says."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile

from trainer import UserError
from trainer.plugin_api import show
from trainer_plugins.strategies.tpu_refusals import described
from trainer_plugins.tpu_check import libtpu_process
from trainer_plugins.tpu_check.lowering import Lowered
from trainer_plugins.tpu_check.topology import Topology

_NO_ROOM = "RESOURCE_EXHAUSTED"
# `required for HLO temporaries (69.4G) exceeds available HBM (15.75G)`
_USED = re.compile(r"\((?P<used>[\d.]+\w)\) exceeds .*?\((?P<limit>[\d.]+\w)\)")
_OPERATION = re.compile(r'op_name="(?P<name>[^"]+)"')


class DoesNotFit(UserError):
    """A program needs more memory than a chip has.

    Args:
        message: the sentence.
        needed: how much, as the compiler writes it.
    """

    def __init__(self, message: str, needed: str) -> None:
        super().__init__(message)
        self.needed = needed


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the TPU compiler says of a program, for one chip.

    Attributes:
        argument: bytes of inputs and variables.
        output: bytes of results.
        alias: bytes of results that are in an argument's place.
        temp: bytes of all else that is alive at once.
        generated_code: bytes of the program itself.
        flops: floating-point operations; of a loop, those of one pass.
        bytes_accessed: of memory, likewise.
        all_reduces: how many there are.
        loops: how many there are.
    """

    argument: int
    output: int
    alias: int
    temp: int
    generated_code: int
    flops: float
    bytes_accessed: float
    all_reduces: int
    loops: int

    @property
    def live_bytes(self) -> int:
        """What is in the chip's memory at once."""
        kept = self.argument + self.output - self.alias
        return kept + self.temp + self.generated_code


def require_compiler() -> None:
    """Checks that the TPU compiler is installed.

    Raises:
        UserError: it is not; the message says what to install.
    """
    why = libtpu_process.why_not_here()
    if why is not None:
        raise UserError(why)


def compile_for(
    topology: Topology, lowered: Lowered, *, name: str, replicas: int
) -> Compiled:
    """Compiles a program in a process of its own.

    libtpu writes to the standard streams, and ends the process where it finds
    an error in itself.

    Args:
        topology: what to compile for.
        lowered: the program.
        name: of the program, for messages.
        replicas: how many chips run it together.

    Raises:
        DoesNotFit: it needs more memory than there is.
        UserError: it cannot be compiled for another reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.mlir")
        with open(path, "wb") as file:
            file.write(lowered.module)
        done = subprocess.run(
            [
                *(sys.executable, "-m", libtpu_process.__name__),
                str(topology),
                json.dumps(dict(topology.chip.options)),
                str(replicas),
                path,
            ],
            # libtpu leaves logs there. It is needed, even where a run is told
            # to leave the chips of its machine alone.
            env={
                **os.environ,
                "TPU_LOG_DIR": "disabled",
                "TPU_LOAD_LIBRARY": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.strip():
        last = done.stderr.strip().rpartition("\n")[2]
        raise UserError(
            f"The TPU compiler ended with {done.returncode} on the {name}: "
            f"{last}"
        )
    found = json.loads(done.stdout)
    if "error" in found:
        raise _failure(topology, lowered, name, found["error"])
    return Compiled(**found)


def _failure(
    topology: Topology, lowered: Lowered, name: str, message: str
) -> UserError:
    first = message.strip().partition("\n")[0]
    if not first.startswith(_NO_ROOM):
        found = _OPERATION.search(message)
        where = f", at {described(found['name'])}" if found else ""
        return UserError(
            f"The TPU compiler refuses the {name} for {topology}{where}: "
            f"{first}"
        )
    found = _USED.search(message)
    needed = found["used"] if found else "more"
    there = f" of {found['limit']} that there are" if found else ""
    operation, size = lowered.largest
    return DoesNotFit(
        f"The {name} does not fit into the memory of a {topology.kind} chip: "
        f"it needs {needed}{there}. Its largest tensor, of "
        f"{show(size, 'bytes')}, is made by {described(operation)}. Use a "
        "smaller batch_size (--fit_batch finds the largest that fits), "
        "accumulation_steps, mixed_bfloat16 or more chips.",
        needed,
    )
