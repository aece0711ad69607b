"""The TPU slices that a run can be compiled for, and their chips."""

import dataclasses
import math
import re

from trainer import UserError
from trainer.plugin_api import nearest

GiB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of chip.

    Attributes:
        hbm_bytes: of high-bandwidth memory, those that a program can use.
        dimensions: of the torus of chips.
        several_hosts: whether TensorFlow's server takes a slice of them.
        options: for the compiler's topology, by name.
    """

    hbm_bytes: float
    dimensions: int
    several_hosts: bool = True
    options: tuple[tuple[str, str], ...] = ()


# The memory is what the tested libtpu allows a program, rounded as in its
# message: some of the chip's 16, 32 or 96 GiB is its own.
CHIPS = {
    "v4": Chip(
        hbm_bytes=30.75 * GiB,
        dimensions=3,
        # A chip's two cores as one, which is how a replica uses them.
        options=(("chip_config_name", "megacore"),),
    ),
    "v5e": Chip(hbm_bytes=15.75 * GiB, dimensions=2),
    "v5p": Chip(hbm_bytes=95.73 * GiB, dimensions=3),
    "v6e": Chip(
        hbm_bytes=31.24 * GiB,
        dimensions=2,
        several_hosts=False,
    ),
}
# The slices of v5e and v6e. Those of v4 and v5p are these, and all whose sides
# are multiples of 4 in ascending order.
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SOLID = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
_FORM = re.compile(r"(v\w+):(\d+(?:x\d+)*)")


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a TPU.

    Attributes:
        kind: such as `"v5e"`.
        sides: chips along each dimension, such as `"2x4"`.
    """

    kind: str
    sides: str

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Reads a topology such as `"v5e:2x4"`.

        Raises:
            UserError: there is no such slice.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise UserError(
                f"--tpu_topology={text} must be a kind of chip and the sides "
                "of a slice, such as v5e:2x4 or v5p:2x2x1."
            )
        kind, sides = match.groups()
        if kind not in CHIPS:
            raise UserError(
                f"--tpu_topology={text}: there is no such kind of chip. "
                f"{nearest(kind, CHIPS)}"
            )
        known = _FLAT if CHIPS[kind].dimensions == 2 else _SOLID
        if sides not in known and (known is _FLAT or not _is_large(sides)):
            more = "" if known is _FLAT else " Also multiples of 4, as 4x4x8."
            raise UserError(
                f"--tpu_topology={text}: a {kind} has no slice {sides}. "
                f"Valid: {', '.join(known)}.{more}"
            )
        found = cls(kind, sides)
        if found.hosts > 1 and not found.chip.several_hosts:
            raise UserError(
                f"--tpu_topology={text} has {found.hosts} hosts. The server of "
                "TensorFlow 2.20 knows the topologies of v2 to v5; on a slice "
                f"of {kind} it fails with KeyError, so {kind} is for one host: "
                "1x1, 2x2 or 2x4. For several hosts use v4, v5e or v5p."
            )
        return found

    def __str__(self) -> str:
        return f"{self.kind}:{self.sides}"

    @property
    def chip(self) -> Chip:
        """The kind of its chips."""
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """How many there are; each is a replica."""
        return math.prod(map(int, self.sides.split("x")))

    @property
    def hosts(self) -> int:
        """How many there are, of 4 chips each; 8 of a flat slice are one."""
        most = 8 if self.chip.dimensions == 2 else 4
        return 1 if self.chips <= most else self.chips // 4


def _is_large(sides: str) -> bool:
    numbers = sorted(int(side) for side in sides.split("x"))
    written = "x".join(map(str, numbers)) == sides
    return (
        written and len(numbers) == 3 and all(n and n % 4 == 0 for n in numbers)
    )
