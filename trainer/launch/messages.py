"""How the launcher says what became of a task."""

import signal
from typing import TYPE_CHECKING

from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN

if TYPE_CHECKING:
    from trainer.launch.policy import End, Limits


def exit_code(end: "End | None") -> int:
    """What a shell calls the end of a process.

    Args:
        end: `None` for one that had to be ended because it went on too long.
    """
    if end is None or end.returncode is None:
        return EXIT_FAILED
    code = end.returncode
    return code if code >= 0 else 128 - code


def how(end: "End | None") -> str:
    """How a task ended, such as `"was ended by SIGKILL"`.

    Args:
        end: see `exit_code`.
    """
    if end is None:
        return "went on too long after the chief had ended; it is ended now"
    code = end.returncode
    if code is None:
        return f"could not be started: {end.error}"
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    if code == EXIT_START_AGAIN:
        return f"asks to be started again (exit code {code})"
    return f"failed with exit code {code}"


def starting_again(
    name: str, end: "End", *, after: float, number: int, limits: "Limits"
) -> str:
    """Says that a task is started again.

    Args:
        name: the task's.
        end: why.
        after: in so many seconds.
        number: which restart within the window this is; 0 if it does not
            count.
        limits: how many there may be.
    """
    # What it said itself of its end; its log has more.
    known = f": {end.failure}" if end.error and end.returncode else ""
    when = f" in {after:g} s" if after else ""
    count = (
        f"restart {number} of at most {limits.max_restarts} in "
        f"{limits.window_seconds:g} s"
        if number
        else "due to another task: this does not count"
    )
    return f"{name} {how(end)}{known}. It is started again{when} ({count})."


def closing(restarts: dict[str, int], left_out: list[str]) -> str:
    """The last line of a launch that ended well; empty if all was smooth.

    Args:
        restarts: by task, how often it was started again.
        left_out: the tasks without which the others went on.
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


def signal_name(number: int) -> str:
    """Such as `"SIGTERM"`; for one without a name, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def times(count: int) -> str:
    """Such as `"once"` or `"3 times"`."""
    return "once" if count == 1 else f"{count} times"
