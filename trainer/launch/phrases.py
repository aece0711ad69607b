"""Words for signals and counts in the launcher's messages."""

import signal


def signal_name(number: int) -> str:
    """Returns a name such as `"SIGTERM"`; the number if there is none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def times(count: int) -> str:
    """Returns, for example, `"once"` or `"3 times"`."""
    return "once" if count == 1 else f"{count} times"
