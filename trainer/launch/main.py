"""`python -m trainer.launch`: starts tasks, and starts them again.

It runs `python -m trainer` as this host's task of a cluster, or as each task
of a cluster on this machine, with a `TF_CONFIG` as a real cluster's launcher
sets it. Nothing here imports TensorFlow.
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
from trainer.launch.agent import Group, Signals
from trainer.launch.clock import Clock
from trainer.launch.group_policy import Failure, Judge
from trainer.launch.help import HELP
from trainer.launch.isolation import ISOLATED, isolate, open_ports
from trainer.launch.policy import Limits
from trainer.launch.process import Process
from trainer.launch.task import Member
from trainer.launch.tasks import (
    Task,
    count_ports,
    held_ports,
    make_task,
    make_tasks,
)
from trainer.launch.timeouts import Patience

_LAST_LINES = 20
# After a failure the others have nothing left to save.
_AFTER_FAILURE_SECONDS = 10.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1,)


def main(given: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        given: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 done, 2 a user's mistake, else that of the process
        that failed for good.
    """
    given = list(sys.argv[1:] if given is None else given)
    own = given[: given.index("--")] if "--" in given else given
    if HELP_FLAGS.intersection(own):
        sys.stdout.write(HELP)
        return EXIT_DONE
    try:
        request = arguments.parse(given)
        _make_log_dir(request.log_dir)
        if request.isolate:
            isolate()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    _show(f"log files: {request.log_dir}\n".encode())
    with _tasks(request) as tasks:
        return launch(
            tasks,
            log_dir=request.log_dir,
            limits=request.limits,
            min_workers=request.min_workers,
            model_dir=request.model_dir,
            run_is_over=_record(request),
        )


def _record(request: arguments.Request) -> Callable[[], bool]:
    """Tells whether the run that is trained here has ended well."""
    # Who only evaluates it has the last checkpoint before it then.
    if request.model_dir is None or request.mode not in TRAINING_MODES:
        return _never
    # An older end is never believed: the run may be about to go on.
    return RunIsOver(request.model_dir, start_seconds=math.inf)


def _never() -> bool:
    return False


@contextlib.contextmanager
def _tasks(request: arguments.Request) -> Iterator[list[Task]]:
    """This host's task of a cluster, or a cluster of its own."""
    command = [sys.executable, "-m", "trainer", *request.arguments]
    if request.place is not None:
        job, index = request.place
        yield [make_task(command, job, index, request.min_workers)]
        return
    with held_ports(count_ports(request.num_workers, request.num_ps)) as ports:
        text = ISOLATED if request.isolate else open_ports(ports)
        _show(f"{text}\n".encode())
        yield make_tasks(
            command,
            ports=ports,
            num_workers=request.num_workers,
            num_ps=request.num_ps,
            evaluator=request.evaluator,
            min_workers=request.min_workers,
        )


def launch(
    tasks: Sequence[Task],
    *,
    log_dir: str,
    limits: Limits,
    min_workers: int | None = None,
    model_dir: str | None = None,
    run_is_over: Callable[[], bool] = _never,
    patience: Patience | None = None,
    clock: Clock | None = None,
    start_process: Callable[[Task, str], Process] = Process,
) -> int:
    """Starts some processes and stays until the last one is gone.

    What ends by bad luck is started again, see
    `trainer.launch.policy`. SIGINT and SIGTERM are passed on, SIGHUP
    as SIGTERM; who does not end then gets SIGKILL later. A second signal
    does so at once. SIGUSR1 is passed on.

    Args:
        tasks: the chief first; its output is shown.
        log_dir: where each gets its log file; it exists.
        limits: how often each is started again.
        min_workers: how many workers are enough to go on without another
            one; `None` if all are needed.
        model_dir: the run directory, if there is one.
        run_is_over: see `trainer.launch.agent.Group`.
        patience: how long to wait for what; the defaults if `None`.
        clock: tells the time and lets it pass; the real one if `None`.
        start_process: starts a task, given with the path of its log file.

    Returns:
        The exit code. After a signal it is 75 if a process saved its state
        and asks for a new start, 0 if the run was done by then, else 128 and
        the signal's number.
    """
    patience = patience or Patience()
    members = [
        Member(
            task,
            log_dir=log_dir,
            model_dir=model_dir,
            start_process=start_process,
        )
        for task in tasks
    ]
    judge = Judge(members, limits=limits, min_workers=min_workers, say=_say)
    with _collected_signals() as signals:
        group = Group(
            members,
            judge,
            patience=patience,
            show=_show,
            say=_say,
            run_is_over=run_is_over,
            signals=signals,
            clock=clock or Clock(),
        )
        try:
            failure = group.run()
            if signals.end and failure is None:
                number = signals.end[0]
                _say(
                    f"{messages.signal_name(number)}: ending all processes. "
                    "Once more ends them at once."
                )
                # Tasks leave in order on SIGTERM and SIGINT only.
                ending = signal.SIGTERM if number == signal.SIGHUP else number
                group.end(patience.end_seconds, number=ending)
                if EXIT_START_AGAIN in [m.returncode for m in members]:
                    return EXIT_START_AGAIN
                if not group.is_over:
                    return 128 + number
            if failure is not None:
                _report(failure, shown=failure.member is group.chief)
            group.end(_AFTER_FAILURE_SECONDS)
        finally:
            group.kill()
    if failure is not None:
        return messages.exit_code(failure.end)
    _close(members)
    return EXIT_DONE


@contextlib.contextmanager
def _collected_signals() -> Iterator[Signals]:
    """Takes note of signals instead of dying of them.

    What this process was started to ignore (as under nohup) stays ignored.
    """
    signals = Signals([], [])

    def note(number: int, frame: FrameType | None) -> None:
        kind = signals.pass_on if number in _PASSED_ON else signals.end
        kind.append(number)

    previous = {
        number: signal.signal(number, note)
        for number in (*_ENDING, *_PASSED_ON)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _say(sentence: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _close(members: Sequence[Member]) -> None:
    """Says how smooth a run was that ended well."""
    text = messages.closing(
        {m.task.name: m.restarts for m in members},
        [m.task.name for m in members if m.left_out],
    )
    if text:
        _show(f"{text}\n".encode())


def _show(output: bytes) -> None:
    try:
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Nobody reads any more; the log files have it all.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _report(failure: Failure, *, shown: bool) -> None:
    """Says who failed and how, with the end of its log if not `shown`."""
    member = failure.member
    parts = [f"{member.task.name} {messages.how(failure.end)}.", failure.why]
    if shown:
        parts.append(f"Its log: {member.log_path}")
    else:
        lines = member.last_lines(_LAST_LINES).splitlines()
        parts.append(f"The end of {member.log_path}:")
        parts[-1] += "".join(f"\n  {line}" for line in lines)
    _say(" ".join(filter(None, parts)))


def _make_log_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The log directory {path} cannot be made: {error.strerror}. "
            "Name another one with --log_dir."
        ) from None
