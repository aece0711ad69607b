"""The launcher's messages about what has happened to a task."""

from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN
from trainer.launch.phrases import signal_name, times
from trainer.launch.policy import End, Limits


def exit_code(end: End | None) -> int:
    """Returns the exit code that a shell would report for a process.

    Args:
        end: `None` for a process that was terminated because it kept running
            for too long.
    """
    if end is None or end.returncode is None:
        return EXIT_FAILED
    code = end.returncode
    # A negative number is a signal, for which a shell adds 128.
    return code if code >= 0 else 128 - code


def describe_end(end: End | None) -> str:
    """Returns how a task ended, such as `"was killed by SIGKILL"`.

    Args:
        end: see `exit_code`.
    """
    if end is None:
        return (
            "kept running for too long after the chief had ended; "
            "it is terminated now"
        )
    code = end.returncode
    if code is None:
        return f"could not be started: {end.error}"
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    if code == EXIT_START_AGAIN:
        return f"asks to be restarted (exit code {code})"
    return f"failed with exit code {code}"


def restart_message(
    name: str, end: End, *, after: float, number: int, limits: Limits
) -> str:
    """Returns a message on a task that is restarted.

    Args:
        name: the task's name.
        end: why.
        after: seconds until the restart.
        number: the number of this restart within the window; 0 if it does
            not count.
        limits: how many restarts are allowed.
    """
    # The task's own exit report gives the error; its log file has more.
    known = f": {end.failure}" if end.error and end.returncode else ""
    when = f" in {after:g} s" if after else ""
    count = (
        f"restart {number} of at most {limits.max_restarts} in "
        f"{limits.window_seconds:g} s"
        if number
        else "due to another task, so it does not count"
    )
    return (
        f"{name} {describe_end(end)}{known}. It is restarted{when} ({count})."
    )


def summary(restarts: dict[str, int], left_out: list[str]) -> str:
    """Returns the last line after a success; empty without any incident.

    Args:
        restarts: how often each task was restarted.
        left_out: the tasks that the others went on without.
    """
    parts = [f"{name} {times(n)}" for name, n in restarts.items() if n]
    text = "Done."
    if parts:
        total = sum(restarts.values())
        text += f" {total} {'restart' if total == 1 else 'restarts'}: "
        text += f"{', '.join(parts)}."
    if left_out:
        text += f" Left out: {', '.join(left_out)}."
    return text if parts or left_out else ""
