"""`python -m trainer.launch`: starts tasks, and restarts them.

It runs `python -m trainer` as this host's task of a cluster, or as each task
of a cluster on this machine, with a `TF_CONFIG` as a cluster manager would set
it. Nothing here imports TensorFlow.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from trainer.cli.command import recorded, started
from trainer.cli.flags import HELP_FLAGS
from trainer.errors import (
    EXIT_DONE,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    UserError,
)
from trainer.launch import arguments
from trainer.launch.agent import Agent
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.run_options import TRAINING_MODES
from trainer.runtime.files import is_local
from trainer.runtime.run_paths import RunIsOver, newest_step
from trainer.runtime.standard_streams import say

_GPUS = "CUDA_VISIBLE_DEVICES"


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
        sys.stdout.write(f"log files: {request.log_dir}\n")
        return _run(request)
    except UserError as error:
        say(f"error: {error}")
        return EXIT_USER_ERROR


def _run(request: arguments.Request) -> int:
    """Starts the tasks; returns the exit code when the last one has ended."""
    flags = request.flags
    limits = Limits(flags.max_restarts, flags.min_workers)
    path = request.model_dir
    # An evaluator may still have to evaluate the last checkpoint at the end.
    is_read = request.mode in TRAINING_MODES and is_local(path)
    run_is_over: Callable[[], bool] = (
        # A record from before this launch does not count: the run may be
        # about to continue.
        RunIsOver(path, start_seconds=math.inf) if is_read else lambda: False
    )
    # The ports stay reserved until the end, since a restarted task listens on
    # its port again.
    with _tasks(request) as tasks:
        code = Agent(
            tasks,
            limits=limits,
            run_is_over=run_is_over,
            newest_step=lambda: newest_step(path) if is_read else None,
        ).run()
    if code == EXIT_START_AGAIN:
        given = [*request.own, "--", *request.arguments]
        say(f"continue with: {recorded(given, module='trainer.launch')}")
    return code


@contextlib.contextmanager
def _tasks(request: arguments.Request) -> Iterator[list[Task]]:
    """Yields this host's task of a cluster, or a cluster on this machine."""
    command, flags = started(request.arguments), request.flags
    environ = {}
    if flags.min_workers is not None:
        environ["TRAINER_MIN_WORKERS"] = str(flags.min_workers)
    make = functools.partial(Task, command=command, log_dir=request.log_dir)
    if request.task is not None:
        # No TF_CONFIG: the task finds its cluster as it would without a
        # launcher.
        yield [make(*request.task, environ=environ)]
        return
    # In this order: the first task leads, and its output is shown. Without
    # parameter servers, worker 0 is the chief.
    counts = {
        "chief": int(flags.num_ps > 0),
        "worker": flags.num_workers,
        "ps": flags.num_ps,
        "evaluator": int(flags.evaluator),
    }
    # One for the coordinator, and one for each task but an evaluator.
    with held_ports(1 + sum(counts.values()) - counts["evaluator"]) as ports:
        # The coordinator's, the first, listens on 127.0.0.1 alone; the servers
        # of TensorFlow on every interface, if there is one but "lo".
        if len(socket.if_nameindex()) > 1:
            shown = ", ".join(map(str, ports[1:]))
            sys.stdout.write(
                f"ports open to the network during the run: {shown} "
                "(docs/scale/ports.md says how to close them)\n"
            )
        yield [
            make(job, index, environ={**environ, **own})
            for job, index, own in cluster_environ(counts, ports)
        ]


def cluster_environ(
    counts: Mapping[str, int], ports: Sequence[int]
) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Yields job, index and environment of each task, the chief first.

    Args:
        counts: how many tasks each job has.
        ports: the coordinator's, and one for each task but an evaluator.

    Raises:
        UserError: the workers cannot share the GPUs that are named.
    """
    coordinator, *rest = ports
    left = iter(rest)
    cluster = {
        job: [f"127.0.0.1:{next(left)}" for _ in range(count)]
        for job, count in counts.items()
        if count and job != "evaluator"
    }
    shared = {
        "TRAINER_COORDINATOR_PORT": str(coordinator),
        # A process that does not have it is no task of this cluster.
        "TRAINER_COORDINATOR_SECRET": secrets.token_hex(16),
    }
    named = os.environ.get(_GPUS, "").split(",")
    # CUDA ends the list at the first number that is none.
    if not named[0].strip() or named[0].strip().startswith("-"):
        named = []
    if len(named) % counts["worker"]:
        raise UserError(
            f"{counts['worker']} workers cannot share the {len(named)} GPUs of "
            f"{_GPUS}={','.join(named)} evenly. Change it, or --num_workers."
        )
    for job, count in counts.items():
        for index in range(count):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            own = shared | {"TF_CONFIG": json.dumps(config)}
            # Without the variable, workers find the GPUs, and share them.
            if job != "worker":
                own[_GPUS] = "-1"
            elif named:
                share = len(named) // count
                own[_GPUS] = ",".join(named[index * share :][:share])
            yield job, index, own


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Reserves free ports of 127.0.0.1.

    They stay bound without a listener. A program that sets SO_REUSEADDR, as
    TensorFlow does, can still listen on them.

    Raises:
        UserError: there are not that many.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        try:
            for _ in range(count):
                holder = stack.enter_context(socket.socket())
                holder.bind(("127.0.0.1", 0))
                # Not before `bind`: the kernel could give two one port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                ports.append(holder.getsockname()[1])
        # Such as too many open files.
        except OSError as error:
            raise UserError(
                f"--num_workers: {count} ports cannot be reserved: "
                f"{error.strerror}."
            ) from None
        yield ports
