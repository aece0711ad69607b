"""Leaves in order when the machine is about to be taken away."""

import _thread
import contextlib
import os
import re
import signal
import sys
import threading
from typing import Annotated, Any, TypeAlias

from absl import logging
from annotated_types import Predicate
from typing_extensions import Doc

from trainer import Callback
from trainer.plugin_api import Seconds, configurable, give_up, signals
from trainer_plugins.callbacks.metadata_server import MetadataServer

# 128 plus SIGINT, as a shell reports it.
_EXIT_INTERRUPTED = 130
# After a second Ctrl-C: how long Python may take to leave by itself.
_LAST_SECONDS = 2.0
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SAVING = (signal.SIGUSR1,)
Url: TypeAlias = Annotated[
    str,
    Predicate(re.compile(r"(https?://[^\s/]+(/\S*)?)?").fullmatch),
    Doc("an address such as 'http://host:port', '' for none"),
]


@configurable(module="trainer_plugins.callbacks")
class Preemption(Callback):
    """Saves and exits with 75 when the run is asked to leave.

    SIGTERM, SIGHUP (a closed terminal) and SIGINT (Ctrl-C) end the run after
    the graph call that is under way: all processes of the run save once, at
    one step, and exit with 75. A second SIGINT ends the process at once, with
    130. SIGUSR1 saves, and training goes on. A Cloud VM's metadata server is
    asked too: `preempted` and a `maintenance-event` that ends the VM are like
    SIGTERM, one that moves it like SIGUSR1.

    Args:
        grace_seconds: a process that has not come to a step to save at so
            long after it was asked exits with 75 all the same; the run then
            goes on from its last checkpoint. Ctrl-C waits, and so does
            `None`.
        metadata_url: the metadata server's address. By default Google
            Cloud's, or what the environment variable `GCE_METADATA_HOST`
            says, and only if it answers; `""` asks none.
        poll_seconds: how often it is asked.

    Raises:
        UserError: an argument is not valid.
    """

    single = True

    def __init__(
        self,
        *,
        grace_seconds: Seconds | None = 25.0,
        metadata_url: Url | None = None,
        poll_seconds: Seconds = 5.0,
    ) -> None:
        super().__init__()
        self._grace_seconds = grace_seconds
        self._metadata = (
            None
            if metadata_url == ""
            else MetadataServer(
                metadata_url, poll_seconds=poll_seconds, on_event=self._hear
            )
        )
        self._listener = signals.Listener(
            (*_LEAVING, *_SAVING), self._handle, in_main=self._heard
        )
        self._interrupts = 0
        self._has_raised = False
        self._is_leaving = False
        self._saves = True
        self._arrived = threading.Event()
        self._closed = threading.Event()

    def setup(self) -> None:
        """Takes the signals, and starts to ask the metadata server."""
        self._closed.clear()
        self._arrived.clear()
        self._saves = self.run.steps is None or self.run.saves
        if not self._saves:
            logging.warning(
                "Preemption finds no callback that saves: a run that is asked "
                "to leave begins anew. Add @Checkpoint() to run.callbacks."
            )
        self._interrupts, self._is_leaving = 0, False
        self._has_raised = False
        # Whoever trains in another thread has a program around it that minds
        # signals.
        if not self._listener.start():
            logging.warning(
                "Preemption hears no signals: training is not in the "
                "process's main thread."
            )
        if self._metadata is not None:
            self._metadata.start()

    def on_leave(self, step: int) -> None:
        """The rest is the save, which nothing should cut short."""
        self._arrived.set()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """What is left ends the run as well."""
        self._arrived.set()

    def close(self) -> None:
        """Gives the signals back."""
        self._closed.set()
        # Or the thread that minds the grace would end the process later.
        self._arrived.set()
        if self._metadata is not None:
            self._metadata.stop()
        # The echo of a second Ctrl-C may be on its way: it must not break off
        # the end that the first has begun.
        again = self._interrupts > 1
        self._listener.stop(keep=(signal.SIGINT,) if again else ())

    def _handle(self, number: int) -> None:
        if number in _SAVING:
            self._hear(signal.Signals(number).name, leave=False)
        elif number in _LEAVING:
            self._interrupts += number == signal.SIGINT
            if self._interrupts == 2:
                _end_at_once()
            elif self._interrupts < 2:
                self._hear(signal.Signals(number).name, leave=True)

    def _heard(self, number: int) -> None:
        """Called in the main thread; the one that listens does the rest."""
        # The second Ctrl-C comes twice: from the kernel, and from the thread
        # that listens. What the first raises must not be interrupted.
        if self._interrupts > 1 and not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt

    def _hear(self, what: str, leave: bool) -> None:
        """Called on any thread when something asks to save or to leave."""
        # The metadata server's thread may still be in a request.
        if self._closed.is_set():
            return
        if not leave:
            logging.warning("%s: saving at the next boundary.", what)
            self.run.save_soon()
        elif not self._is_leaving:
            logging.warning(
                "%s: leaving at the end of this host loop%s.%s",
                what,
                ", saved" if self._saves else "",
                " Once more ends the run at once." if what == "SIGINT" else "",
            )
            self._is_leaving = True
            self.run.start_again(what)
            self._mind_the_grace(what)

    def _mind_the_grace(self, what: str) -> None:
        # Whoever presses Ctrl-C can press it again.
        if self._grace_seconds is None or what == "SIGINT":
            return
        seconds = self._grace_seconds

        def wait() -> None:
            if not self._arrived.wait(seconds):
                give_up(
                    f"{what}; no step to save at within {seconds:g} s: make "
                    "run.steps_per_loop smaller or "
                    "Preemption.grace_seconds longer"
                )

        threading.Thread(target=wait, name="grace", daemon=True).start()


def _end_at_once() -> None:
    # The main thread may be inside TensorFlow, where nothing interrupts it.
    timer = threading.Timer(_LAST_SECONDS, os._exit, (_EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()
    # The same Ctrl-C may have ended who read this.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("interrupted twice: ending at once\n")
        sys.stderr.flush()
    # The handler raises KeyboardInterrupt if Python gets to run it.
    _thread.interrupt_main(signal.SIGINT)
