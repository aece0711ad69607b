"""Runs the points of a sweep, one after the other."""

import json
import os
import subprocess
from collections.abc import Sequence

from trainer.cli import command, flags
from trainer.cli.default_path import default_path, experiment_name
from trainer.cli.flag_table import TRAINING_MODES
from trainer.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    UserError,
)
from trainer.launch.agent import Agent
from trainer.launch.arguments import CLUSTER_FLAGS
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.launch.task_spec import TaskSpec
from trainer.launch.terminal import echo, log
from trainer.runs.main import show
from trainer.runs.status import read_status
from trainer.runtime import local_files, signals
from trainer.strategy.cluster.resolve import is_described
from trainer.sweep.points import Point, parse_points

_RECORD = "sweep.json"


def run_sweep(request: flags.Request, arguments: Sequence[str]) -> int:
    """Trains a run for each point, and prints a table of them.

    Runs that are done are not repeated, and the one that was cut goes on.

    Args:
        request: the parsed command line.
        arguments: the command line.

    Returns:
        0 if all runs are done; 1 if one has failed, after the others; 2 for a
        user's mistake, and 75 or that of a signal if the sweep has to leave,
        which all end it at once.

    Raises:
        UserError: the sweep cannot be run.
    """
    points = parse_points(request.sweeps, request.bindings)
    _check(request)
    given = flags.without(flags.expand(arguments), "sweep", "model_dir")
    name = experiment_name(request.gin_files)
    folder = local_files.plain(request.model_dir or default_path(name))
    _check_folder(folder)
    # From here on SIGTERM is for the agent, and the default between two runs.
    signals.release()
    if (code := _check_points(given, request.sweeps)) != EXIT_DONE:
        return code
    _write_record(folder, arguments)
    echo(f"sweep: {folder} ({len(points)} runs)\n".encode())
    code = _run_all(points, given, folder)
    try:
        show(folder)
    except UserError as error:
        # Such as for a value whose name tells no direction.
        log(f"no table: {error}")
    return code


def _check(request: flags.Request) -> None:
    if request.mode not in TRAINING_MODES:
        raise UserError(
            f"--sweep trains, and --mode={request.mode} does not. Valid: "
            f"{', '.join((*TRAINING_MODES, 'print_config'))}."
        )
    of_a_task = {f"run.{name}" for name in CLUSTER_FLAGS}
    cluster = [b.source for b in request.bindings if b.parameter in of_a_task]
    if cluster or is_described({}, os.environ):
        what = cluster[0] if cluster else "a cluster in the environment"
        raise UserError(
            f"--sweep starts processes on this machine, which does not go "
            f"with {what}."
        )


def _check_folder(folder: str) -> None:
    if not local_files.is_local(folder):
        raise UserError(f"--sweep needs a local --model_dir, not {folder}.")
    local_files.check_path(folder)
    if os.path.lexists(os.path.join(folder, "run.json")):
        raise UserError(
            f"{folder} holds a run, and a sweep has its runs in folders of "
            "their own. Choose another --model_dir."
        )


def _check_points(given: Sequence[str], sweeps: Sequence[str]) -> int:
    """Reads the configuration of each point, in a process of its own.

    A mistake in the last point shows before the first one is trained.

    Returns:
        The exit code: 2 if one is wrong; that process has said why.
    """
    return subprocess.run(
        [
            *command.started(flags.without(given, "mode")),
            *(f"--sweep={text}" for text in sweeps),
            "--mode=print_config",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ).returncode


def _write_record(folder: str, arguments: Sequence[str]) -> None:
    """Writes the command, for `--resume`."""
    record = {"command": command.recorded(arguments)}
    content = f"{json.dumps(record)}\n".encode()
    try:
        os.makedirs(folder, exist_ok=True)
        local_files.replace(os.path.join(folder, _RECORD), content)
    except OSError as error:
        raise UserError(
            f"--model_dir={folder} cannot be written: {error.strerror}."
        ) from None


def _run_all(points: Sequence[Point], given: Sequence[str], folder: str) -> int:
    failed = False
    for number, point in enumerate(points, 1):
        path = os.path.join(folder, point.name)
        own = [*given, *point.flags, f"--model_dir={path}"]
        which = f"run {number}/{len(points)}: {point.name}"
        if _is_done(path, own):
            echo(f"{which} is done\n".encode())
            continue
        echo(f"{which}\n".encode())
        code, is_told_to_end = _run(number, own, path)
        if is_told_to_end:
            # The run may be done by then, but not the sweep.
            return code or EXIT_START_AGAIN
        if code in (EXIT_USER_ERROR, EXIT_START_AGAIN):
            return code
        failed = failed or code != EXIT_DONE
    return EXIT_FAILED if failed else EXIT_DONE


def _is_done(path: str, arguments: Sequence[str]) -> bool:
    """Whether the same command has ended well."""
    status = read_status(path)
    same = command.recorded(arguments) == status.record.get("command")
    return same and status.state == "done"


def _run(number: int, arguments: Sequence[str], path: str) -> tuple[int, bool]:
    """Runs one point; returns its exit code, and whether a signal has come."""
    local_files.refuse_links(path, "logs")
    spec = TaskSpec("run", number, command.started(arguments))
    task = Task(spec, log_dir=os.path.join(path, "logs"))
    # Not restarted here: the same command of the sweep does that.
    limits = Limits(max_restarts=0)
    agent = Agent([task], limits=limits, run_is_over=lambda: False)
    return agent.run(), agent.was_told_to_end
