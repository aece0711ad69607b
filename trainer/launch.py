"""`python -m trainer.launch`: a cluster of processes on this machine.

It sets `TF_CONFIG` for each process, as a real cluster's launcher does, and
runs `python -m trainer` in it. Nothing here imports TensorFlow.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from trainer.errors import (
    EXIT_DONE,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    UserError,
)
from trainer.launcher import arguments
from trainer.launcher.group import END_SECONDS, Group, exit_code
from trainer.launcher.process import Process
from trainer.launcher.tasks import (
    Task,
    count_ports,
    held_ports,
    make_tasks,
)

_HELP = {"-h", "-help", "--help", "--helpshort", "--helpfull"}
_LAST_LINES = 20
# After a failure the others have nothing left to save.
_AFTER_FAILURE_SECONDS = 10.0


def main(given: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        given: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 done, 2 a user's mistake, else that of the process
        that failed first.
    """
    given = list(sys.argv[1:] if given is None else given)
    own = given[: given.index("--")] if "--" in given else given
    if _HELP.intersection(own):
        sys.stdout.write(arguments.HELP)
        return EXIT_DONE
    try:
        request = arguments.parse(given)
        _make_log_dir(request.log_dir)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    sys.stdout.write(f"log files: {request.log_dir}\n")
    sys.stdout.flush()
    with held_ports(count_ports(request.num_workers, request.num_ps)) as ports:
        tasks = make_tasks(
            [sys.executable, "-m", "trainer", *request.arguments],
            ports=ports,
            num_workers=request.num_workers,
            num_ps=request.num_ps,
            evaluator=request.evaluator,
        )
        return launch(tasks, log_dir=request.log_dir)


def launch(
    tasks: Sequence[Task],
    *,
    log_dir: str,
    end_seconds: float = END_SECONDS,
    leave_seconds: dict[str, float] | None = None,
) -> int:
    """Starts some processes and stays until the last one is gone.

    SIGINT and SIGTERM are passed on, and again later as SIGKILL to those that
    do not end; a second one does so at once.

    Args:
        tasks: the chief first; its output is shown.
        log_dir: where each gets its log file; it exists.
        end_seconds: how long they may take after a signal.
        leave_seconds: see `trainer.launcher.group.LEAVE_SECONDS`.

    Returns:
        The exit code. After a signal it is 75 if a process saved its state
        and asks for a new start, else 128 and the signal's number.
    """
    with _collected_signals() as signals:
        group = Group(
            tasks,
            log_dir=log_dir,
            show=_show,
            signals=signals,
            leave_seconds=leave_seconds,
        )
        try:
            group.start()
            failed = group.wait()
            if signals and failed is None:
                return _pass_on(group, signals[0], end_seconds)
            code = EXIT_DONE
            if failed is not None:
                code = exit_code(failed.returncode)
                _report(failed, shown=failed.task is tasks[0])
            group.end(_AFTER_FAILURE_SECONDS)
        finally:
            group.kill()
    return code


def _pass_on(group: Group, number: int, seconds: float) -> int:
    sys.stderr.write(
        f"{_signal_name(number)}: ending all processes. Once more "
        "ends them at once.\n"
    )
    group.end(seconds, number=number)
    if EXIT_START_AGAIN in group.exit_codes():
        return EXIT_START_AGAIN
    return 128 + number


@contextlib.contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Adds SIGINT, SIGTERM and SIGHUP to a list instead of dying of them.

    What this process was started to ignore (as under nohup) stays ignored.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    previous = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show(output: bytes) -> None:
    try:
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Nobody reads any more; the log files have it all.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _report(failed: Process, *, shown: bool) -> None:
    """Says who failed and how, with the end of its log if not `shown`."""
    sys.stdout.flush()
    text = f"{failed.task.name} {_how(failed.returncode)}. "
    if shown:
        text += f"Its log: {failed.log_path}\n"
    else:
        lines = failed.last_lines(_LAST_LINES).splitlines()
        text += f"The end of {failed.log_path}:\n"
        text += "".join(f"  {line}\n" for line in lines)
    sys.stderr.write(text)
    sys.stderr.flush()


def _how(returncode: int | None) -> str:
    if returncode is None:
        return "went on too long after the chief had ended; it is ended now"
    if returncode < 0:
        return f"was ended by {_signal_name(-returncode)}"
    if returncode == EXIT_START_AGAIN:
        return f"asks to be started again (exit code {returncode})"
    return f"failed with exit code {returncode}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _make_log_dir(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The log directory {path} cannot be made: {error.strerror}. "
            "Name another one with --log_dir."
        ) from None


if __name__ == "__main__":
    sys.exit(main())
