"""Leaves in order when the machine is about to be taken away."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from typing import Any

from absl import logging

from trainer import Callback
from trainer.plugin_api import Seconds, configurable, give_up, say, signals

# 128 plus SIGINT, as a shell reports it.
_EXIT_INTERRUPTED = 130
# After a second Ctrl-C: how long Python may take to leave by itself.
_LAST_SECONDS = 2.0
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SAVING = (signal.SIGUSR1,)


@configurable(module="trainer_plugins.callbacks")
class Preemption(Callback):
    """Saves and exits with 75 when the run has to leave.

    SIGTERM, SIGHUP (a closed terminal) and SIGINT (Ctrl-C) end the run after
    the graph call that is under way: all processes of the run save once, at one
    step, and exit with 75. A second SIGINT ends the process at once, with 130.
    SIGUSR1 saves, and training continues.

    Args:
        grace_seconds: a process that has not reached a step to save at this
            long after the signal exits with 75 anyway; the next start then
            resumes from the last checkpoint. There is no limit after Ctrl-C, or
            with `None`.

    Raises:
        UserError: an argument is not valid.
    """

    single = True

    def __init__(self, *, grace_seconds: Seconds | None = 25.0) -> None:
        super().__init__()
        self._grace_seconds = grace_seconds
        self._listener = signals.Listener(
            (*_LEAVING, *_SAVING), self._on_signal, in_main=self._in_main
        )
        self._interrupts = 0
        self._has_raised = self._is_leaving = False
        self._saves = True
        self._arrived = threading.Event()

    def setup(self) -> None:
        """Takes the signals."""
        # A new one for each run: a thread of the last may still wait on its.
        self._arrived = threading.Event()
        self._interrupts = 0
        self._has_raised = self._is_leaving = False
        self._saves = self.run.steps is None or self.run.saves
        if not self._saves:
            logging.warning(
                "Preemption finds no callback that saves: a run that has to "
                "leave would start from the beginning. Add @Checkpoint() to "
                "run.callbacks."
            )
        # A program that trains in another thread handles signals itself.
        if not self._listener.start():
            logging.warning(
                "Preemption receives no signals: training is not in the "
                "process's main thread."
            )

    def on_leave(self, step: int) -> None:
        """Lifts the limit: only the save is left, and must not be cut short."""
        self._arrived.set()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lifts the limit: the run is ending anyway."""
        self._arrived.set()

    def close(self) -> None:
        """Gives the signals back."""
        # Or the thread of the grace period would end the process later.
        self._arrived.set()
        # The echo of a second Ctrl-C may be on its way: it must not interrupt
        # the shutdown that the first has begun.
        again = self._interrupts > 1
        self._listener.stop(keep=(signal.SIGINT,) if again else ())

    def _on_signal(self, number: int) -> None:
        """Called on the listener's thread."""
        name = signal.Signals(number).name
        if number in _SAVING:
            logging.warning("%s: saving at the next boundary.", name)
            self.run.save_soon()
            return
        self._interrupts += number == signal.SIGINT
        if self._interrupts == 2:
            _end_at_once()
        elif self._interrupts < 2 and not self._is_leaving:
            self._is_leaving = True
            self._leave(name)

    def _in_main(self, number: int) -> None:
        """Called in the main thread; the thread of the listener does the rest.

        The second Ctrl-C comes twice: from the kernel, and from that thread.
        The exception that the first one raises must not be interrupted.
        """
        if self._interrupts > 1 and not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt

    def _leave(self, why: str) -> None:
        if why == "SIGINT":
            say("stopping after this step (Ctrl-C again to stop at once)")
        else:
            saved = ", saved" if self._saves else ""
            logging.warning("%s: leaving after this step%s.", why, saved)
        self.run.start_again(why)
        # After a Ctrl-C one can press it again.
        if self._grace_seconds is not None and why != "SIGINT":
            threading.Thread(
                target=self._limit_grace,
                args=(why, self._grace_seconds, self._arrived),
                name="grace",
                daemon=True,
            ).start()

    def _limit_grace(
        self, why: str, seconds: float, arrived: threading.Event
    ) -> None:
        if not arrived.wait(seconds):
            give_up(
                f"{why}; no step to save at was reached within {seconds:g} s. "
                "Decrease run.steps_per_loop or increase "
                "Preemption.grace_seconds."
            )


def _end_at_once() -> None:
    # The main thread may be inside TensorFlow, where nothing interrupts it.
    timer = threading.Timer(_LAST_SECONDS, os._exit, (_EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()
    # The same Ctrl-C may have ended the reader of this stream.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("interrupted twice: ending at once\n")
        sys.stderr.flush()
    # The handler raises KeyboardInterrupt if Python gets to run it.
    _thread.interrupt_main(signal.SIGINT)
