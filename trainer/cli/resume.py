"""`--resume=NAME`: a run goes on with its own command.

Nothing here imports TensorFlow.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence

from trainer.cli import command, flags
from trainer.errors import UserError, did_you_mean
from trainer.runs.finding import find
from trainer.runtime.files import read

_HOME = "runs"
_RECORD = "run.json"
_MOST_NAMES = 5


def expand(arguments: Sequence[str]) -> list[str]:
    """Replaces `--resume=NAME` by the command of that run.

    What else is on the command line comes after it, and wins.

    Args:
        arguments: a command line, with or without `--resume`.

    Raises:
        UserError: there is no such run, or several; or it has no command.
    """
    names = flags.values_of(arguments, "resume")
    if not names:
        return list(arguments)
    rest = flags.without(arguments, "resume")
    if len(names) > 1:
        raise UserError("--resume is there twice: one run goes on at a time.")
    if flags.values_of(rest, "model_dir"):
        raise UserError(
            "--resume and --model_dir both say where the run is: give one."
        )
    path = _find(names[0])
    before = flags.without(_command(path), "model_dir")
    # Two ways to say the same: the new one wins.
    lengths = ("train_steps", "epochs")
    if any(flags.values_of(rest, name) for name in lengths):
        before = flags.without(before, *lengths)
    found = [*before, *rest, f"--model_dir={path}"]
    # Not on stdout, whose first line is that of the run.
    sys.stderr.write(f"resumes: {command.recorded(found)}\n")
    return found


def _find(name: str) -> str:
    """Returns the directory of a run."""
    if _is_recorded(name):
        return os.path.normpath(name)
    known = _known()
    found = [
        one
        for one in known
        if one == name or one.endswith(f"/{name.strip('/')}")
    ]
    if len(found) == 1:
        return os.path.join(_HOME, found[0])
    if found:
        raise UserError(
            f"--resume={name} may be {_listed(found)}. Write more of it."
        )
    hint = did_you_mean(name, known) or did_you_mean(
        name, [os.path.basename(one) for one in known]
    )
    there = f" There: {_listed(known)}." if known else ""
    raise UserError(
        f"--resume={name}: there is no such run below {_HOME}.{hint}{there}"
    )


def _is_recorded(path: str) -> bool:
    return os.path.isfile(os.path.join(path, _RECORD))


def _known() -> list[str]:
    """The names of all runs that have a record, newest last."""
    if not os.path.isdir(_HOME):
        return []
    names = sorted(find(_HOME).runs)
    return [one for one in names if _is_recorded(os.path.join(_HOME, one))]


def _listed(names: Sequence[str]) -> str:
    # The newest ones, where the names are times.
    shown = ", ".join(reversed(names[-_MOST_NAMES:]))
    left = len(names) - _MOST_NAMES
    return f"{shown} and {left} more" if left > 0 else shown


def _command(path: str) -> list[str]:
    """Returns the arguments that a run was started with."""
    try:
        record = json.loads(read(os.path.join(path, _RECORD)))
        words = shlex.split(record["command"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        words = []
    if words[: len(command.START)] != command.START:
        raise UserError(
            f"{path}/{_RECORD} does not say how the run was started: give its "
            f"--gin_file and --model_dir={path}."
        )
    return words[len(command.START) :]
