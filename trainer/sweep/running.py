"""Runs the points of a sweep, one after the other."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from trainer.cli import flags
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
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.launch.task_spec import TaskSpec
from trainer.launch.terminal import echo
from trainer.runs.main import show
from trainer.runs.status import read_status
from trainer.runtime import local_files, signals
from trainer.strategy.cluster.resolve import is_described
from trainer.sweep.points import Point, parse_points

RECORD = "sweep.json"
# The exit code of a signal is 128 and its number.
_SIGNALS = 128


def run_sweep(request: flags.Request, arguments: Sequence[str]) -> int:
    """Trains a run for each point, and prints a table of them.

    Runs that are done are not repeated, and the one that was cut goes on.

    Args:
        request: the parsed command line.
        arguments: the command line.

    Returns:
        0 if all runs are done; 1 if one has failed, after the others; 2 for a
        user's mistake, and 75 or more if the sweep was ended, which both end
        it at once.

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
    show(folder)
    return code


def _check(request: flags.Request) -> None:
    if request.mode not in TRAINING_MODES:
        raise UserError(
            f"--sweep trains, and --mode={request.mode} does not. Valid: "
            f"{', '.join((*TRAINING_MODES, 'print_config'))}."
        )
    cluster = [
        f"--{name}"
        for binding in request.bindings
        if (name := (binding.parameter or "").removeprefix("run."))
        in ("worker_hosts", "ps_hosts", "task_type", "task_index")
    ]
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
            *(sys.executable, "-m", "trainer", *flags.without(given, "mode")),
            *(f"--sweep={text}" for text in sweeps),
            "--mode=print_config",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ).returncode


def _write_record(folder: str, arguments: Sequence[str]) -> None:
    """Writes the command, for `--resume`."""
    path = os.path.join(folder, RECORD)
    command = shlex.join(["python", "-m", "trainer", *arguments])
    try:
        os.makedirs(folder, exist_ok=True)
        with local_files.create(f"{path}.tmp") as file:
            file.write(json.dumps({"command": command}).encode() + b"\n")
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        raise UserError(
            f"--model_dir={folder} cannot be written: {error.strerror}."
        ) from None


def _run_all(points: Sequence[Point], given: Sequence[str], folder: str) -> int:
    failed = False
    for number, point in enumerate(points, 1):
        path = os.path.join(folder, point.name)
        command = [*given, *point.flags, f"--model_dir={path}"]
        which = f"run {number}/{len(points)}: {point.name}"
        if _is_done(path, command):
            echo(f"{which} is done\n".encode())
            continue
        echo(f"{which}\n".encode())
        code = _run(number, command, path)
        if code in (EXIT_USER_ERROR, EXIT_START_AGAIN) or code > _SIGNALS:
            return code
        failed = failed or code != EXIT_DONE
    return EXIT_FAILED if failed else EXIT_DONE


def _is_done(path: str, command: Sequence[str]) -> bool:
    """Whether the same command has ended well."""
    status = read_status(path)
    same = shlex.join(["python", "-m", "trainer", *command])
    return status.state == "done" and status.record.get("command") == same


def _run(number: int, command: Sequence[str], path: str) -> int:
    local_files.refuse_links(path, "logs")
    spec = TaskSpec("run", number, (sys.executable, "-m", "trainer", *command))
    task = Task(spec, log_dir=os.path.join(path, "logs"))
    # Not restarted here: the same command of the sweep does that.
    limits = Limits(max_restarts=0)
    agent = Agent([task], limits=limits, run_is_over=lambda: False)
    code = agent.run()
    if code == EXIT_DONE and agent.was_told_to_end:
        # This run is done, but not the sweep.
        return EXIT_START_AGAIN
    return code
