"""Parses the command line of `python -m trainer.launch`."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence

from absl import flags as absl_flags

from trainer.cli import flags as trainer_flags
from trainer.cli.config.suggest import did_you_mean
from trainer.cli.default_path import default_path, experiment_name
from trainer.errors import UserError
from trainer.launch.environment import find_task
from trainer.launch.policy import Limits
from trainer.runtime.local_files import is_local, plain, refuse_links

# The smallest valid value of each.
_NUMBERS = {
    "num_workers": 1,
    "num_ps": 0,
    "max_restarts": 0,
    "min_workers": 1,
}
_NAMES = (*_NUMBERS, "evaluator", "isolate", "log_dir", "restart_window")
# Each of these starts a cluster here, whatever the environment says.
_HERE = ("num_workers", "num_ps", "evaluator")
_CLUSTER_FLAGS = ("worker_hosts", "ps_hosts", "task_type", "task_index")
_KINDS = {
    **dict.fromkeys(_NUMBERS, "an integer"),
    "evaluator": "true or false",
    "isolate": "true or false",
    "restart_window": "a number",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        task: job and index of this host's task in an existing cluster;
            `None` for a cluster on this machine.
        num_workers: how many workers to start.
        num_ps: how many parameter servers.
        evaluator: whether there is an evaluator.
        isolate: whether the tasks get their own network.
        limits: how often a task is restarted.
        min_workers: how many workers are enough; `None` if all are needed.
        log_dir: where the log files go.
        mode: the `--mode` of the tasks.
        model_dir: the run directory if it is local.
        arguments: for `python -m trainer`, with a `--model_dir`.
    """

    task: tuple[str, int] | None
    num_workers: int
    num_ps: int
    evaluator: bool
    isolate: bool
    limits: Limits
    min_workers: int | None
    log_dir: str
    mode: str
    model_dir: str | None
    arguments: tuple[str, ...]


def parse(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Request:
    """Parses the command line.

    Args:
        arguments: without the program's name.
        environ: the environment.

    Raises:
        UserError: a flag is wrong, on either side of the `--`.
    """
    own, behind = _split(list(arguments))
    values = _parse_own(own)
    _check_numbers(values)
    # Report a mistake once here, not once in every process.
    request = trainer_flags.parse(behind)
    task = _own_task(values, request, environ)
    _check_min_workers(values, task)
    model_dir = request.model_dir
    if model_dir is None:
        if task is not None:
            raise UserError(
                "--model_dir is missing after the --: the tasks of a cluster "
                "on several hosts must all see the same directory."
            )
        # Chosen here, because the default depends on the time and every process
        # would choose another one.
        model_dir = default_path(experiment_name(request.gin_files))
        behind.append(f"--model_dir={model_dir}")
    model_dir = plain(model_dir)
    if values["isolate"].value:
        _check_isolated(task, model_dir)
    return Request(
        task=task,
        num_workers=values["num_workers"].value,
        num_ps=values["num_ps"].value,
        evaluator=values["evaluator"].value,
        isolate=values["isolate"].value,
        limits=Limits(
            values["max_restarts"].value, values["restart_window"].value
        ),
        min_workers=values["min_workers"].value,
        log_dir=values["log_dir"].value or _log_dir(model_dir),
        mode=request.mode,
        model_dir=model_dir if is_local(model_dir) else None,
        arguments=tuple(behind),
    )


def _check_numbers(values: absl_flags.FlagValues) -> None:
    for name, least in _NUMBERS.items():
        value = values[name].value
        if value is not None and value < least:
            raise UserError(f"--{name}={value}: must be at least {least}.")
    window = values["restart_window"].value
    # Written this way round so that NaN is refused, too.
    if not window > 0:
        raise UserError(f"--restart_window={window:g}: must be above 0.")


def _own_task(
    values: absl_flags.FlagValues,
    request: trainer_flags.Request,
    environ: Mapping[str, str],
) -> tuple[str, int] | None:
    """Returns this host's task of an existing cluster, if there is one."""
    given = {}
    for binding in request.bindings:
        name = (binding.parameter or "").removeprefix("run.")
        if name in _CLUSTER_FLAGS:
            # The source is the flag as given, such as `--task_index=1`.
            given[name] = binding.source.partition("=")[2]
    here = [name for name in _HERE if values[name].present]
    if here and given:
        raise UserError(
            f"--{here[0]} starts a cluster on this machine, but "
            f"--{next(iter(given))} after the -- is for an existing one. Use "
            "only one of the two."
        )
    return None if here else find_task(given, environ)


def _check_min_workers(
    values: absl_flags.FlagValues, task: tuple[str, int] | None
) -> None:
    least = values["min_workers"].value
    if least is None:
        return
    most = values["num_workers"].value
    # On several hosts only the tasks know how many workers there are; their
    # rendezvous checks the number.
    if task is None and least > most:
        raise UserError(
            f"--min_workers={least}: must be from 1 to --num_workers={most}."
        )
    if values["num_ps"].value:
        raise UserError(
            f"--min_workers={least} is for workers without parameter servers: "
            "with --num_ps, workers may come and go anyway."
        )
    if not values["max_restarts"].value:
        raise UserError(
            f"--min_workers={least} needs --max_restarts of at least 1: the "
            "remaining workers are restarted to go on."
        )


def _check_isolated(task: tuple[str, int] | None, model_dir: str) -> None:
    if task is not None:
        raise UserError(
            "--isolate cuts tasks off from the network, and this task's peers "
            "are on it. It is for a cluster on this machine, such as with "
            "--num_workers=2."
        )
    if not is_local(model_dir):
        raise UserError(
            f"--isolate cuts tasks off from the network, and so from the "
            f"--model_dir {model_dir}. Give a local one."
        )


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parse_own(arguments: list[str]) -> absl_flags.FlagValues:
    # A set of its own, as in `trainer.cli.flags`. The help texts are empty
    # because `help` has a text of its own.
    values = absl_flags.FlagValues()
    define = absl_flags.DEFINE_integer
    define("num_workers", 2, "", flag_values=values)
    define("num_ps", 0, "", flag_values=values)
    define("max_restarts", Limits.max_restarts, "", flag_values=values)
    define("min_workers", None, "", flag_values=values)
    absl_flags.DEFINE_boolean("evaluator", False, "", flag_values=values)
    absl_flags.DEFINE_boolean("isolate", False, "", flag_values=values)
    absl_flags.DEFINE_string("log_dir", "", "", flag_values=values)
    absl_flags.DEFINE_float(
        "restart_window", Limits.window_seconds, "", flag_values=values
    )
    try:
        left_over = values(["trainer.launch", *arguments])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(error.flagname)) from None
    except (absl_flags.Error, ValueError) as error:
        raise UserError(trainer_flags.bad_value(str(error), _KINDS)) from None
    if left_over:
        raise UserError(
            f"Unexpected argument {left_over[0]!r}. The flags of trainer go "
            "after a --."
        )
    return values


def _unknown(name: str) -> str:
    if name in trainer_flags.FLAGS or name.startswith("gin."):
        return (
            f"--{name} is a flag of trainer: write it after a --, as in "
            f"python -m trainer.launch --num_workers=2 -- --{name}=..."
        )
    hint = did_you_mean(name, [*_NAMES, "help"], prefix="--")
    return f"Unknown flag --{name}.{hint} --help lists the flags."


def _log_dir(model_dir: str) -> str:
    """Returns the default: a local folder, because logs are appended to."""
    if not is_local(model_dir):
        return tempfile.mkdtemp(prefix="trainer-logs-")
    # Whoever may write to the run directory could otherwise let the launcher
    # append to any file of this user.
    refuse_links(model_dir, "logs")
    return os.path.join(model_dir, "logs")
