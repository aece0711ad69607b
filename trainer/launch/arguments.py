"""Parses the command line of `python -m trainer.launch`."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags as absl_flags

from trainer.cli import flags as trainer_flags
from trainer.cli.default_path import default_path, experiment_name
from trainer.cli.flag_table import HELP_FLAGS
from trainer.errors import UserError, did_you_mean
from trainer.launch.policy import Limits
from trainer.runtime.files import is_local
from trainer.runtime.run_paths import plain, refuse_links
from trainer.strategy.cluster.resolve import is_described, resolve_cluster

# The default and the smallest valid value of each.
_INTEGERS = {
    "num_workers": (2, 1),
    "num_ps": (0, 0),
    "max_restarts": (Limits.max_restarts, 0),
    "min_workers": (None, 1),
}
_KINDS = {
    **{n: f"an integer of at least {low}" for n, (_, low) in _INTEGERS.items()},
    "evaluator": "true or false",
    "isolate": "true or false",
    "restart_window": "a number above 0",
}
# Far more than a machine can start, and than may be restarted in an hour.
_MOST_TASKS = 10_000
# Each of these starts a cluster here, whatever the environment says.
_HERE = ("num_workers", "num_ps", "evaluator")
CLUSTER_FLAGS = ("worker_hosts", "ps_hosts", "task_type", "task_index")


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        flags: the launcher's own, by name.
        task: job and index of this host's task in an existing cluster, for
            its log file; `None` for a cluster on this machine.
        log_dir: where the log files go.
        mode: the `--mode` of the tasks.
        model_dir: the run directory if it is local.
        arguments: for `python -m trainer`, with a `--model_dir`.
    """

    flags: Mapping[str, Any]
    task: tuple[str, int] | None
    log_dir: str
    mode: str
    model_dir: str | None
    arguments: tuple[str, ...]


def parse(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Request:
    """Parses the command line.

    Raises:
        UserError: a flag is wrong, on either side of the `--`.
    """
    at = arguments.index("--") if "--" in arguments else len(arguments)
    values = _parse_own(arguments[:at])
    flags = {name: values[name].value for name in values}
    behind = list(arguments[at + 1 :])
    if HELP_FLAGS.intersection(behind):
        raise UserError("Help is for one process: python -m trainer --help.")
    # Report a mistake once here, not once in every process.
    request = trainer_flags.parse(behind)
    if request.list_strategies:
        raise UserError(
            "The list is for one process: python -m trainer --strategy=help."
        )
    task = _own_task(values, request, environ)
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
    _check_together(flags, task, model_dir)
    return Request(
        flags=flags,
        task=task,
        log_dir=flags["log_dir"] or _log_dir(model_dir),
        mode=request.mode,
        model_dir=model_dir if is_local(model_dir) else None,
        arguments=tuple(behind),
    )


def _parse_own(arguments: Sequence[str]) -> absl_flags.FlagValues:
    # A set of its own, as in `trainer.cli.flags`. The help texts are empty
    # because `help` has a text of its own.
    values = absl_flags.FlagValues()
    for name, (default, least) in _INTEGERS.items():
        absl_flags.DEFINE_integer(
            name,
            default,
            "",
            lower_bound=least,
            upper_bound=_MOST_TASKS,
            flag_values=values,
        )
    for name in ("evaluator", "isolate"):
        absl_flags.DEFINE_boolean(name, False, "", flag_values=values)
    absl_flags.DEFINE_string("log_dir", "", "", flag_values=values)
    window = Limits.window_seconds
    absl_flags.DEFINE_float("restart_window", window, "", flag_values=values)
    try:
        left_over = values(["trainer.launch", *arguments])[1:]
    except absl_flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(error.flagname, values)) from None
    except (absl_flags.Error, ValueError) as error:
        raise UserError(trainer_flags.bad_value(str(error), _KINDS)) from None
    if left_over:
        raise UserError(
            f"Unexpected argument {left_over[0]!r}. The flags of trainer go "
            "after a --."
        )
    window = values["restart_window"].value
    # Written this way round so that NaN is refused, too.
    if not window > 0:
        raise UserError(f"--restart_window={window:g}: must be above 0.")
    return values


def _unknown(name: str, values: absl_flags.FlagValues) -> str:
    if name in trainer_flags.FLAGS or name.startswith("gin."):
        return (
            f"--{name} is a flag of trainer: write it after a --, as in "
            f"python -m trainer.launch --num_workers=2 -- --{name}=..."
        )
    hint = did_you_mean(name, [*values, "help"], prefix="--")
    return f"Unknown flag --{name}.{hint} --help lists the flags."


def _own_task(
    values: absl_flags.FlagValues,
    request: trainer_flags.Request,
    environ: Mapping[str, str],
) -> tuple[str, int] | None:
    """Returns this host's task of an existing cluster, if there is one."""
    given: dict[str, Any] = {}
    for binding in request.bindings:
        name = (binding.parameter or "").removeprefix("run.")
        if name in CLUSTER_FLAGS:
            # The source is the flag as given, such as `--task_index=1`.
            text = binding.source.partition("=")[2]
            given[name] = int(text) if name == "task_index" else text
    here = [name for name in _HERE if values[name].present]
    if here and given:
        raise UserError(
            f"--{here[0]} starts a cluster on this machine, but "
            f"--{next(iter(given))} after the -- is for an existing one. Use "
            "only one of the two."
        )
    if here or not is_described(given, environ):
        return None
    cluster = resolve_cluster(environ=environ, **given)
    if cluster is None:
        return "task", 0
    # Slurm and Kubernetes assign no jobs, and only the task knows whether its
    # strategy makes one of them a chief or a parameter server.
    is_rank = cluster.source in ("Slurm", "Kubernetes")
    has_jobs = "ps" in cluster.jobs or not is_rank
    return cluster.job if has_jobs else "task", cluster.index


def _check_together(
    flags: Mapping[str, Any], task: tuple[str, int] | None, model_dir: str
) -> None:
    """Checks the flags that depend on others."""
    least, most = flags["min_workers"], flags["num_workers"]
    # On several hosts only the tasks know how many workers there are; their
    # rendezvous checks the number.
    if least is not None and task is None and least > most:
        raise UserError(
            f"--min_workers={least}: must be from 1 to --num_workers={most}."
        )
    if least is not None and flags["num_ps"]:
        raise UserError(
            f"--min_workers={least} is for workers without parameter servers: "
            "with --num_ps, workers may come and go anyway."
        )
    if least is not None and not flags["max_restarts"]:
        raise UserError(
            f"--min_workers={least} needs --max_restarts of at least 1: the "
            "remaining workers are restarted to go on."
        )
    if flags["isolate"] and task is not None:
        raise UserError(
            "--isolate cuts tasks off from the network, and this task's peers "
            "are on it. It is for a cluster on this machine, such as with "
            "--num_workers=2."
        )
    if flags["isolate"] and not is_local(model_dir):
        raise UserError(
            f"--isolate cuts tasks off from the network, and so from the "
            f"--model_dir {model_dir}. Give a local one."
        )


def _log_dir(model_dir: str) -> str:
    """Returns the default: a local folder, because logs are appended to."""
    if not is_local(model_dir):
        return tempfile.mkdtemp(prefix="trainer-logs-")
    # Whoever may write to the run directory could otherwise let the launcher
    # append to any file of this user.
    refuse_links(model_dir, "logs")
    return os.path.join(model_dir, "logs")
