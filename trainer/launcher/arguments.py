"""The command line of `python -m trainer.launch`."""

import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Sequence

from absl import flags as absl_flags

from trainer.cli import flags as trainer_flags
from trainer.cli.suggest import did_you_mean
from trainer.errors import UserError

HELP = """\
Starts a cluster of processes on this machine, to try and to test.

Usage:
  python -m trainer.launch --num_workers=2 [flags] -- FLAGS OF trainer

Every process runs python -m trainer with the flags behind the --, and with a
TF_CONFIG that tells it its place in the cluster. The chief's output is on the
terminal; each process has a log file. The first failure ends all.

Flags:
  --num_workers=N    Processes that train. Default: 2.
  --num_ps=N         Parameter servers; with them a chief is started too.
                     Default: 0.
  --evaluator        Start a process that evaluates beside the others.
  --log_dir=DIR      Where the log files go. Default: <model_dir>/logs.

Example:
  python -m trainer.launch --num_workers=2 -- \\
      --gin_file=experiments/digits.gin --model_dir=/tmp/digits

Exit codes: 0 done; 2 what was given is wrong; else that of the process that
failed first, 128 and the signal's number if a signal ended it.
"""
_NAMES = ("num_workers", "num_ps", "evaluator", "log_dir")
_WRONG_VALUE = re.compile(r"flag --(?P<name>\w+)=(?P<value>.*?): ")


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        num_workers: how many workers.
        num_ps: how many parameter servers.
        evaluator: whether there is an evaluator.
        log_dir: where the log files go.
        arguments: for `python -m trainer`, with a `--model_dir`.
    """

    num_workers: int
    num_ps: int
    evaluator: bool
    log_dir: str
    arguments: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Request:
    """Reads the command line.

    Args:
        arguments: without the program's name.

    Raises:
        UserError: a flag is wrong, on either side of the `--`.
    """
    own, behind = _split(list(arguments))
    values = _parse_own(own)
    for name, least in (("num_workers", 1), ("num_ps", 0)):
        if values[name].value < least:
            raise UserError(
                f"--{name}={values[name].value}: must be at least {least}."
            )
    # A mistake is named once here, not once by every process.
    request = trainer_flags.parse(behind)
    model_dir = request.model_dir
    if model_dir is None:
        model_dir = _new_model_dir(request.gin_files)
        behind.append(f"--model_dir={model_dir}")
    return Request(
        num_workers=values["num_workers"].value,
        num_ps=values["num_ps"].value,
        evaluator=values["evaluator"].value,
        log_dir=values["log_dir"].value or _log_dir(model_dir),
        arguments=tuple(behind),
    )


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parse_own(arguments: list[str]) -> absl_flags.FlagValues:
    values = absl_flags.FlagValues()
    absl_flags.DEFINE_integer("num_workers", 2, "", flag_values=values)
    absl_flags.DEFINE_integer("num_ps", 0, "", flag_values=values)
    absl_flags.DEFINE_boolean("evaluator", False, "", flag_values=values)
    absl_flags.DEFINE_string("log_dir", "", "", flag_values=values)
    try:
        left_over = values(["trainer.launch", *arguments])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(error.flagname)) from None
    except (absl_flags.Error, ValueError) as error:
        raise UserError(_bad_value(str(error))) from None
    if left_over:
        raise UserError(
            f"Unexpected argument {left_over[0]!r}. The flags of trainer go "
            "behind a --."
        )
    return values


def _unknown(name: str) -> str:
    if name in trainer_flags.FLAGS or name.startswith("gin."):
        return (
            f"--{name} is a flag of trainer: write it behind a --, as in "
            f"python -m trainer.launch --num_workers=2 -- --{name}=..."
        )
    hint = did_you_mean(name, [*_NAMES, "help"], prefix="--")
    return f"Unknown flag --{name}.{hint} --help lists the flags."


def _bad_value(message: str) -> str:
    match = _WRONG_VALUE.match(message)
    if match is None:
        return message.split("\n")[0]
    kind = "true or false" if match["name"] == "evaluator" else "an integer"
    return f"--{match['name']}={match['value']}: must be {kind}."


def _new_model_dir(gin_files: Sequence[str]) -> str:
    """`runs/<experiment>/<time>`, as a run without a launcher chooses it."""
    stem = os.path.splitext(os.path.basename(gin_files[0]))[0]
    path = os.path.join("runs", stem, time.strftime("%Y%m%d-%H%M%S"))
    unique, count = path, 1
    while os.path.exists(unique):
        count += 1
        unique = f"{path}-{count}"
    return unique


def _log_dir(model_dir: str) -> str:
    """Logs are written as they come, which object stores cannot do."""
    if "://" in model_dir:
        return tempfile.mkdtemp(prefix="trainer-logs-")
    return os.path.join(model_dir, "logs")
