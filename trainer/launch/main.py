"""`python -m trainer.launch`: starts tasks, and restarts them.

It runs `python -m trainer` as this host's task of a cluster, or as each task
of a cluster on this machine, with a `TF_CONFIG` as a cluster manager would set
it. Nothing here imports TensorFlow.
"""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from trainer.cli.flag_table import HELP_FLAGS, TRAINING_MODES
from trainer.cli.run_status import RunIsOver
from trainer.errors import (
    EXIT_DONE,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    UserError,
)
from trainer.launch import arguments, messages
from trainer.launch.agent import Agent, Signals
from trainer.launch.clock import Clock
from trainer.launch.group_policy import Failure, GroupPolicy
from trainer.launch.help import HELP
from trainer.launch.isolation import ISOLATED, isolate, open_ports
from trainer.launch.managed_task import ManagedTask
from trainer.launch.phrases import signal_name
from trainer.launch.policy import Limits
from trainer.launch.process import Process
from trainer.launch.task_spec import (
    TaskSpec,
    count_ports,
    held_ports,
    make_task,
    make_tasks,
)
from trainer.launch.timeouts import Timeouts

_LAST_LINES = 20
# After a failure there is no state left that is worth a long wait.
_AFTER_FAILURE_SECONDS = 10.0
# Ctrl-C, a supervisor or job manager, and a terminal that is closed.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1,)


def main(given: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        given: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake, else that of the
        process that failed for good.
    """
    given = list(sys.argv[1:] if given is None else given)
    # Before parsing: `--help` must work next to a mistyped flag.
    own = given[: given.index("--")] if "--" in given else given
    if HELP_FLAGS.intersection(own):
        sys.stdout.write(HELP)
        return EXIT_DONE
    try:
        request = arguments.parse(given)
        _make_log_dir(request.log_dir)
        # Before any port is reserved or process started: both belong to the
        # network namespace in which they are created.
        if request.isolate:
            isolate()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    _echo(f"log files: {request.log_dir}\n".encode())
    # The ports stay reserved until the end, since a restarted task listens on
    # its port again.
    with _task_specs(request) as specs:
        return launch(
            specs,
            log_dir=request.log_dir,
            limits=request.limits,
            min_workers=request.min_workers,
            model_dir=request.model_dir,
            run_is_over=_record(request),
        )


def _record(request: arguments.Request) -> Callable[[], bool]:
    """Returns a function: whether the run that is trained here is done."""
    # An evaluator may still have to evaluate the last checkpoint by then.
    if request.model_dir is None or request.mode not in TRAINING_MODES:
        return _never
    # A record from before this launch does not count: the run may be about
    # to continue.
    return RunIsOver(request.model_dir, start_seconds=math.inf)


def _never() -> bool:
    return False


@contextlib.contextmanager
def _task_specs(request: arguments.Request) -> Iterator[list[TaskSpec]]:
    """Yields this host's task of a cluster, or a cluster on this machine."""
    command = [sys.executable, "-m", "trainer", *request.arguments]
    if request.task is not None:
        job, index = request.task
        # No TF_CONFIG: the task finds its cluster as it would without a
        # launcher.
        yield [make_task(command, job, index, request.min_workers)]
        return
    with held_ports(count_ports(request.num_workers, request.num_ps)) as ports:
        text = ISOLATED if request.isolate else open_ports(ports)
        _echo(f"{text}\n".encode())
        yield make_tasks(
            command,
            ports=ports,
            num_workers=request.num_workers,
            num_ps=request.num_ps,
            evaluator=request.evaluator,
            min_workers=request.min_workers,
        )


def launch(
    specs: Sequence[TaskSpec],
    *,
    log_dir: str,
    limits: Limits,
    min_workers: int | None = None,
    model_dir: str | None = None,
    run_is_over: Callable[[], bool] = _never,
    timeouts: Timeouts | None = None,
    clock: Clock | None = None,
    start_process: Callable[[TaskSpec, str], Process] = Process,
) -> int:
    """Starts the tasks, and returns when the last one has ended.

    Transient failures are restarted, see `trainer.launch.policy`. SIGINT and
    SIGTERM are forwarded, SIGHUP as SIGTERM. Tasks that do not end then are
    killed after a grace period, or at once on a second signal. SIGUSR1 is
    forwarded.

    Args:
        specs: the tasks, the chief first; its output is shown.
        log_dir: the directory of the log files; it exists.
        limits: how often each task is restarted.
        min_workers: how many workers are enough to go on without another
            one; `None` if all are needed.
        model_dir: the run directory, if there is one.
        run_is_over: see `trainer.launch.agent.Agent`.
        timeouts: the time-outs; the defaults if `None`.
        clock: the time, and how to sleep; the real one if `None`.
        start_process: starts a process from a spec and the path of its log
            file.

    Returns:
        The exit code. After a signal, it is 75 if a process has saved its
        state and asks to be restarted, 0 if the run was done by then, else
        128 plus the signal's number.
    """
    timeouts = timeouts or Timeouts()
    tasks = [
        ManagedTask(
            spec,
            log_dir=log_dir,
            model_dir=model_dir,
            start_process=start_process,
        )
        for spec in specs
    ]
    policy = GroupPolicy(
        tasks, limits=limits, min_workers=min_workers, log=_log
    )
    # Before the first process starts, so that no signal can orphan one.
    with _collected_signals() as signals:
        agent = Agent(
            tasks,
            policy,
            timeouts=timeouts,
            echo=_echo,
            log=_log,
            run_is_over=run_is_over,
            signals=signals,
            clock=clock or Clock(),
        )
        try:
            failure = agent.run()
            if signals.end and failure is None:
                number = signals.end[0]
                _log(
                    f"{signal_name(number)}: ending all processes. "
                    "A second signal kills them at once."
                )
                # Tasks handle SIGTERM and SIGINT only.
                ending = signal.SIGTERM if number == signal.SIGHUP else number
                agent.end(timeouts.end_seconds, number=ending)
                if EXIT_START_AGAIN in [task.returncode for task in tasks]:
                    return EXIT_START_AGAIN
                if not agent.is_over:
                    # As a shell reports a program that the signal has ended.
                    return 128 + number
            if failure is not None:
                _report(failure, shown=failure.task is agent.chief)
            # Also after a good end: some tasks may still wait for peers that
            # have ended.
            agent.end(_AFTER_FAILURE_SECONDS)
        finally:
            agent.kill()
    if failure is not None:
        return messages.exit_code(failure.end)
    _summarize(tasks)
    return EXIT_DONE


@contextlib.contextmanager
def _collected_signals() -> Iterator[Signals]:
    """Records signals instead of being killed by them.

    Signals that this process was started to ignore, as under nohup, stay
    ignored.
    """
    signals = Signals([], [])

    def note(number: int, frame: FrameType | None) -> None:
        # A handler may run between any two instructions, so it only records the
        # signal; the agent acts on it in its loop.
        kind = signals.forward if number in _FORWARDED else signals.end
        kind.append(number)

    previous = {
        number: signal.signal(number, note)
        for number in (*_ENDING, *_FORWARDED)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _log(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _summarize(tasks: Sequence[ManagedTask]) -> None:
    """Prints the restarts and the left-out tasks of a run that ended well."""
    text = messages.summary(
        {task.spec.name: task.restarts for task in tasks},
        [task.spec.name for task in tasks if task.left_out],
    )
    if text:
        _echo(f"{text}\n".encode())


def _echo(output: bytes) -> None:
    try:
        # As bytes: what a task writes need not be valid text.
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader is gone, as after `| head`; the log files have everything.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _report(failure: Failure, *, shown: bool) -> None:
    """Prints which task failed and how, and the end of its log file.

    Args:
        failure: what failed.
        shown: whether its output was shown anyway; the log is only named then.
    """
    task = failure.task
    parts = [
        f"{task.spec.name} {messages.describe_end(failure.end)}.",
        failure.why,
    ]
    if shown:
        parts.append(f"Its log: {task.log_path}")
    else:
        lines = task.last_lines(_LAST_LINES).splitlines()
        parts.append(f"The end of {task.log_path}:")
        parts[-1] += "".join(f"\n  {line}" for line in lines)
    _log(" ".join(filter(None, parts)))


def _make_log_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The log directory {path} cannot be created: {error.strerror}. "
            "Name another one with --log_dir."
        ) from None
