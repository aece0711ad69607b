"""What a server does when it is asked to leave: not before the run has saved.

SIGTERM most often reaches all tasks of a job at once. The chief needs its
workers to finish the steps that are under way, and the parameter servers to
read the variables that it saves.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

from absl import logging

from trainer.plugin_api import signals
from trainer_plugins.control_plane.channel import Lifeline

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Less than a VM's 30 s.
_SAVING_SECONDS = 25.0
# More than a graph call, see `Loop.loop_seconds`.
_WORKING_SECONDS = 20.0


@contextlib.contextmanager
def departing(lifeline: Lifeline, *, holds_state: bool) -> Iterator[None]:
    """Serves a little longer after SIGTERM or SIGINT, then ends with 75.

    A second SIGINT ends the process at once. A second SIGTERM does not: who
    manages a job may send one to a task and to its launcher, which passes
    it on.

    Args:
        lifeline: its `wait` ends the serving.
        holds_state: whether the run cannot do without this task: it is then
            asked to save and to leave, too. A worker just leaves, after some
            seconds in which it finishes what it was given.
    """
    seconds = _SAVING_SECONDS if holds_state else _WORKING_SECONDS

    def depart(number: int) -> None:
        name = signal.Signals(number).name
        reason = f"{lifeline.cluster.label(lifeline.name)}: {name}"
        logging.warning("%s: leaving within %g s.", name, seconds)
        if holds_state:
            lifeline.ask_to_leave(reason)
        timer = threading.Timer(seconds, lifeline.end, (reason,))
        timer.daemon = True
        timer.start()

    def hear_no_more(number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    listener = signals.Listener(_SIGNALS, depart, in_main=hear_no_more)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
