"""`Case`: one command line with its files and variables, and what it is."""

import dataclasses
from collections.abc import Callable
from typing import Any

# Must be refused; must be done; may be either, as nobody can say.
NONSENSE, SENSE, EITHER = "nonsense", "sense", "either"


@dataclasses.dataclass
class Case:
    """One run.

    Attributes:
        what: for messages; unique.
        kind: `NONSENSE`, `SENSE` or `EITHER`.
        arguments: of the command line.
        files: path to content, written to the working directory.
        environ: more environment variables.
        damage: changes a copy of the directory of a finished run, which the
            case then continues; `None` starts a new run.
        names: what the message must contain if the case is refused.
    """

    what: str
    kind: str
    arguments: list[str] = dataclasses.field(default_factory=list)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    environ: dict[str, str] = dataclasses.field(default_factory=dict)
    damage: Callable[[Any], object] | None = None
    names: str = ""
