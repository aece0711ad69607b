"""`python -m trainer.launch`: starts tasks, and restarts them.

It runs `python -m trainer` as this host's task of a cluster, or as each task
of a cluster on this machine, with a `TF_CONFIG` as a cluster manager would set
it. Nothing here imports TensorFlow.
"""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from trainer.cli.command import started
from trainer.cli.flag_table import HELP_FLAGS, TRAINING_MODES
from trainer.errors import EXIT_DONE, EXIT_USER_ERROR, UserError
from trainer.launch import arguments
from trainer.launch.agent import Agent
from trainer.launch.help import HELP
from trainer.launch.isolation import ISOLATED, isolate, open_ports
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.launch.task_spec import (
    TaskSpec,
    count_tasks,
    held_ports,
    make_cluster,
)
from trainer.launch.terminal import echo, log
from trainer.runtime.run_status import RunIsOver


def main(given: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        given: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake, else see
        `Agent.run`.
    """
    given = list(sys.argv[1:] if given is None else given)
    # Before parsing: `--help` must work next to a mistyped flag.
    own = given[: given.index("--")] if "--" in given else given
    if HELP_FLAGS.intersection(own):
        echo(HELP.encode())
        return EXIT_DONE
    try:
        request = arguments.parse(given)
        _make_log_dir(request.log_dir)
        # Before any port is reserved or process started: both belong to the
        # network namespace in which they are created.
        if request.flags["isolate"]:
            isolate()
        echo(f"log files: {request.log_dir}\n".encode())
        return _run(request)
    except UserError as error:
        log(f"error: {error}")
        return EXIT_USER_ERROR


def _run(request: arguments.Request) -> int:
    """Starts the tasks; returns the exit code when the last one has ended."""
    flags = request.flags
    limits = Limits(
        flags["max_restarts"], flags["restart_window"], flags["min_workers"]
    )
    run_is_over = _record(request)
    # The ports stay reserved until the end, since a restarted task listens on
    # its port again.
    with _task_specs(request) as specs:
        tasks = [Task(spec, log_dir=request.log_dir) for spec in specs]
        code = Agent(tasks, limits=limits, run_is_over=run_is_over).run()
    if code == EXIT_DONE:
        summarize(tasks)
    return code


def _record(request: arguments.Request) -> Callable[[], bool]:
    """Returns a function: whether the run that is trained here is done."""
    # An evaluator may still have to evaluate the last checkpoint by then.
    if request.model_dir is None or request.mode not in TRAINING_MODES:
        return lambda: False
    # A record from before this launch does not count: the run may be about
    # to continue.
    return RunIsOver(request.model_dir, start_seconds=math.inf)


@contextlib.contextmanager
def _task_specs(request: arguments.Request) -> Iterator[list[TaskSpec]]:
    """Yields this host's task of a cluster, or a cluster on this machine."""
    command = started(request.arguments)
    environ = {}
    if request.flags["min_workers"] is not None:
        environ["TRAINER_MIN_WORKERS"] = str(request.flags["min_workers"])
    if request.task is not None:
        # No TF_CONFIG: the task finds its cluster as it would without a
        # launcher.
        yield [TaskSpec(*request.task, command, environ)]
        return
    names = ("num_workers", "num_ps", "evaluator")
    counts = count_tasks(**{name: request.flags[name] for name in names})
    with held_ports(1 + sum(counts.values()) - counts["evaluator"]) as ports:
        isolated = request.flags["isolate"]
        echo(f"{ISOLATED if isolated else open_ports(ports)}\n".encode())
        yield make_cluster(command, counts, ports, environ)


def summarize(tasks: Sequence[Task]) -> None:
    """Prints the restarts and the left-out tasks of a run that ended well."""
    restarts = [f"{t.name}: {t.restarts}" for t in tasks if t.restarts > 0]
    left_out = [task.name for task in tasks if task.left_out]
    text = f" Restarts: {', '.join(restarts)}." if restarts else ""
    text += f" Left out: {', '.join(left_out)}." if left_out else ""
    if text:
        echo(f"Done.{text}\n".encode())


def _make_log_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(b"x")
    except OSError as error:
        raise UserError(
            f"The log directory {path} cannot be written to: "
            f"{error.strerror}. Name another one with --log_dir."
        ) from None
