"""`python -m trainer.launch`: starts tasks, and restarts them.

It runs `python -m trainer` as this host's task of a cluster, or as each task
of a cluster on this machine, with a `TF_CONFIG` as a cluster manager would set
it. Nothing here imports TensorFlow.
"""

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence

from trainer.cli.command import started
from trainer.cli.flags import HELP_FLAGS
from trainer.errors import EXIT_DONE, EXIT_USER_ERROR, UserError
from trainer.launch import arguments
from trainer.launch.agent import Agent
from trainer.launch.isolation import ISOLATED, isolate, open_ports
from trainer.launch.local_cluster import held_ports, make_cluster
from trainer.launch.policy import Limits
from trainer.launch.task import Task, TaskSpec, log
from trainer.options import TRAINING_MODES
from trainer.runtime.files import is_local
from trainer.runtime.run_status import RunIsOver


def main(given: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        given: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake, else see
        `Agent.run`.
    """
    given = sys.argv[1:] if given is None else given
    # Before parsing: `--help` must work next to a mistyped flag.
    if HELP_FLAGS.intersection(itertools.takewhile("--".__ne__, given)):
        sys.stdout.write(arguments.__doc__ or "")
        return EXIT_DONE
    try:
        request = arguments.parse(given)
        # Before any port is reserved or process started: both belong to the
        # network namespace in which they are created.
        if request.flags.isolate:
            isolate()
        sys.stdout.write(f"log files: {request.log_dir}\n")
        return _run(request)
    except UserError as error:
        log(f"error: {error}")
        return EXIT_USER_ERROR


def _run(request: arguments.Request) -> int:
    """Starts the tasks; returns the exit code when the last one has ended."""
    flags = request.flags
    limits = Limits(flags.max_restarts, flags.min_workers)
    # An evaluator may still have to evaluate the last checkpoint by then.
    has_end = request.mode in TRAINING_MODES and is_local(request.model_dir)
    run_is_over: Callable[[], bool] = (
        # A record from before this launch does not count: the run may be
        # about to continue.
        RunIsOver(request.model_dir, start_seconds=math.inf)
        if has_end
        else lambda: False
    )
    # The ports stay reserved until the end, since a restarted task listens on
    # its port again.
    with _task_specs(request) as specs:
        tasks = [Task(spec, log_dir=request.log_dir) for spec in specs]
        return Agent(tasks, limits=limits, run_is_over=run_is_over).run()


@contextlib.contextmanager
def _task_specs(request: arguments.Request) -> Iterator[list[TaskSpec]]:
    """Yields this host's task of a cluster, or a cluster on this machine."""
    command, flags = started(request.arguments), request.flags
    environ = {}
    if flags.min_workers is not None:
        environ["TRAINER_MIN_WORKERS"] = str(flags.min_workers)
    if request.task is not None:
        # No TF_CONFIG: the task finds its cluster as it would without a
        # launcher.
        yield [TaskSpec(*request.task, command, environ)]
        return
    # In this order: the first task leads, and its output is shown. Without
    # parameter servers, worker 0 is the chief.
    counts = {
        "chief": int(flags.num_ps > 0),
        "worker": flags.num_workers,
        "ps": flags.num_ps,
        "evaluator": int(flags.evaluator),
    }
    with held_ports(1 + sum(counts.values()) - counts["evaluator"]) as ports:
        sys.stdout.write(
            f"{ISOLATED if flags.isolate else open_ports(ports)}\n"
        )
        yield make_cluster(command, counts, ports, environ)
