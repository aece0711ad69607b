"""Writes the frozen numbers anew.

    python -m tests.frozen [CELL ...]

CELL is such as `mirrored:2/guard`, or a part of it; all without one. Allowed
for a change that is meant to change numbers, and only for the cells that it is
meant to change: its commit says which those are, and why. A change that keeps
the mathematics but rounds otherwise is one, too.

All that is kept must have been made on one kind of machine: if this one is of
another kind, everything has to be written.
"""

import pathlib
import sys
import tempfile

from tests.frozen import matrix, running
from tests.frozen.numbers import Frozen


def main(parts):
    cells = [
        cell
        for cell in matrix.CELLS
        if not parts or any(part in cell for part in parts)
    ]
    frozen = Frozen()
    if parts and frozen.exists:
        frozen = Frozen.read()
        if frozen.differing_facts:
            sys.exit(f"Not on this machine. {frozen.differing_facts}")
    with tempfile.TemporaryDirectory() as folder:
        for number, strategy in enumerate(running.STRATEGIES):
            own = pathlib.Path(folder, str(number))
            own.mkdir()
            flags = {
                matrix.split(cell)[1]: matrix.flags(cell)
                for cell in cells
                if matrix.split(cell)[0] == strategy
            }
            for option, ended in running.run_all(strategy, own, flags).items():
                _freeze(frozen, f"{strategy}/{option}", ended)


def _freeze(frozen, cell, ended):
    if cell in matrix.REFUSED:
        assert ended.code == 2, ended.stderr
        return
    assert ended.code == 0, ended.stderr
    reason = matrix.WITHOUT_BYTES.get(cell)
    frozen.freeze(cell, ended.model_dir, without_bytes=reason)
    print(cell, frozen.runs[cell].get("sha256", "no bytes"), flush=True)
    frozen.write()


if __name__ == "__main__":
    main(sys.argv[1:])
