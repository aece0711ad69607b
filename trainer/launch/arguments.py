r"""Starts the tasks of a cluster, and restarts them after transient failures.

Usage:
  python -m trainer.launch --num_workers=2 [flags] -- FLAGS OF trainer
      A whole cluster on this machine.
  python -m trainer.launch [flags] -- FLAGS OF trainer
      Where TF_CONFIG, Slurm, Kubernetes or --task_index after the -- says
      which task this host runs: that task alone, with one launcher per host.
      Elsewhere: a cluster of 2 workers on this machine.

Each process runs python -m trainer with the flags after the --. In a cluster
on this machine, it gets a TF_CONFIG with its task. The chief's output is shown
on the terminal; each process has a log file.

When a task fails, all tasks of a cluster on this machine are restarted: at
once, and then after 1, 2, 4 ... 60 s. With parameter servers, a worker is
restarted alone, as an evaluator always is. The same failure at the same step
twice ends the whole launch, and so does exit code 2. A task that requests a
restart (exit code 75) is restarted, which does not count.

Flags:
  --num_workers=N    Processes that train; starts a cluster on this machine,
                     whatever the environment says. Default: 2.
  --num_ps=N         Parameter servers, which add a chief; starts a cluster on
                     this machine. Default: 0.
  --evaluator        Also start a process that evaluates checkpoints; starts a
                     cluster on this machine.
  --log_dir=DIR      Where the log files go. Default: <model_dir>/logs, or a
                     new temporary folder if model_dir is remote, as in gs://.
  --max_restarts=N   How often tasks are restarted within an hour; with 0,
                     the first failure ends the launch. Default: 3.
  --min_workers=N    The run may continue with as few as N workers if others
                     are missing. Default: all are needed.

Example:
  python -m trainer.launch --num_workers=2 -- \
      --gin_file=experiments/digits.gin --model_dir=/tmp/digits

SIGTERM, SIGHUP and Ctrl-C end all tasks; SIGUSR1 is forwarded to them. A task
that is stopped (SIGSTOP) for 20 s is killed and restarted.

Exit codes: 0 done; 2 a mistake in the flags or files; 75 a signal ended the
tasks and the state is saved, run the same command again; 128 plus the signal's
number if the state is not saved; else that of the process that failed for
good: 75 if it requests a restart, 128 plus a signal's number if killed.
"""

import dataclasses
import os
import tempfile
import types
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.cli import flags as trainer_flags
from trainer.cli.command import default_path, experiment_name
from trainer.cli.flags import HELP_FLAGS, Flag
from trainer.errors import UserError, did_you_mean
from trainer.launch.policy import Limits
from trainer.runtime.files import is_local
from trainer.runtime.run_paths import plain, refuse_links
from trainer.strategy.cluster.resolve import is_described, resolve_cluster
from trainer.values.annotations import Natural, Positive, Text

# The launcher's own: their types and defaults. What they mean is said above.
_FLAGS: dict[str, tuple[Any, Any]] = {
    "num_workers": (Positive, None),
    "num_ps": (Natural, None),
    "evaluator": (bool, False),
    "log_dir": (Text, None),
    "max_restarts": (Natural, Limits.max_restarts),
    "min_workers": (Positive, None),
}
CLUSTER_FLAGS = ("worker_hosts", "ps_hosts", "task_type", "task_index")


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        flags: the launcher's own.
        task: job and index of this host's task in an existing cluster, for
            its log file; `None` for a cluster on this machine.
        log_dir: where the log files go.
        mode: the `--mode` of the tasks.
        model_dir: the run directory.
        arguments: for `python -m trainer`, with a `--model_dir`.
        own: for the launcher.
    """

    flags: types.SimpleNamespace
    task: tuple[str, int] | None
    log_dir: str
    mode: str
    model_dir: str
    arguments: tuple[str, ...]
    own: tuple[str, ...]


def parse(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Request:
    """Parses the command line.

    Raises:
        UserError: a flag is wrong, on either side of the `--`.
    """
    at = arguments.index("--") if "--" in arguments else len(arguments)
    flags = _parse_own(arguments[:at])
    behind = list(arguments[at + 1 :])
    if HELP_FLAGS.intersection(behind):
        raise UserError("Help is for one process: python -m trainer --help.")
    # Report a mistake once here, not once in every process.
    request = trainer_flags.parse(behind)
    if request.list_strategies:
        raise UserError(
            "The list is for one process: python -m trainer --strategy=help."
        )
    task = _own_task(flags, request, environ)
    model_dir = request.model_dir
    if model_dir is None:
        if task is not None:
            raise UserError(
                "--model_dir is missing after the --: the tasks of a cluster "
                "on several hosts must all see the same directory."
            )
        # Chosen here, because the default depends on the time and every process
        # would choose another one.
        model_dir = default_path(experiment_name(request.gin_file))
        behind.append(f"--model_dir={model_dir}")
    model_dir = plain(model_dir)
    if flags.min_workers is not None and flags.num_ps:
        raise UserError(
            "--min_workers is for workers without parameter servers: with "
            "--num_ps, workers may come and go anyway."
        )
    return Request(
        flags=flags,
        task=task,
        log_dir=flags.log_dir or _log_dir(model_dir),
        mode=request.mode,
        model_dir=model_dir,
        arguments=tuple(behind),
        own=tuple(arguments[:at]),
    )


def _parse_own(arguments: Sequence[str]) -> types.SimpleNamespace:
    values = trainer_flags.define(
        {name: Flag(kind, "", "", "") for name, (kind, _) in _FLAGS.items()}
    )
    left_over = trainer_flags.set_values(values, arguments)
    if left_over:
        raise UserError(_unknown(left_over[0]))
    given = {name: values[name].value for name in _FLAGS}
    return types.SimpleNamespace(
        **{
            name: default if given[name] is None else given[name]
            for name, (_, default) in _FLAGS.items()
        }
    )


def _unknown(argument: str) -> str:
    if not argument.startswith("--"):
        return (
            f"Unexpected argument {argument!r}. The flags of trainer go "
            "after a --."
        )
    name = argument[2:].partition("=")[0]
    if name in trainer_flags.FLAGS or name.startswith("gin."):
        return (
            f"--{name} is a flag of trainer: write it after a --, as in "
            f"python -m trainer.launch --num_workers=2 -- --{name}=..."
        )
    hint = did_you_mean(name, [*_FLAGS, "help"], prefix="--")
    return f"Unknown flag --{name}.{hint} --help lists the flags."


def _own_task(
    flags: types.SimpleNamespace,
    request: trainer_flags.Request,
    environ: Mapping[str, str],
) -> tuple[str, int] | None:
    """Returns this host's task of an existing cluster, if there is one."""
    given = {
        name: request.named[name]
        for name in CLUSTER_FLAGS
        if name in request.named
    }
    # Each of these starts a cluster here, whatever the environment says.
    here = [
        name
        for name in ("num_workers", "num_ps", "evaluator")
        if getattr(flags, name) not in (None, False)
    ]
    flags.num_workers = flags.num_workers or 2
    flags.num_ps = flags.num_ps or 0
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


def _log_dir(model_dir: str) -> str:
    """Returns the default: a local folder, because logs are appended to."""
    if not is_local(model_dir):
        return tempfile.mkdtemp(prefix="trainer-logs-")
    # Whoever may write to the run directory could otherwise let the launcher
    # append to any file of this user.
    refuse_links(model_dir, "logs")
    return os.path.join(model_dir, "logs")
