"""Signals: none is lost, from the first line of a process to the last.

Python runs a handler in the main thread, which may be inside TensorFlow for
minutes. With a multi-worker strategy, TensorFlow also installs its own handler,
which ignores SIGTERM. So `python -m trainer` uses

    hold      On the first line. SIGTERM is blocked in this thread and in all
              that it starts, so that no handler of C code can run. One thread
              takes it, in `sigwait`, and passes it on to Python's handler.
    Listener  In training and in serving, where there is something to save: its
              callback runs on a thread of its own, at once.

Without a listener SIGTERM raises `Terminated` in the main thread, and so does
SIGHUP. A program that does not call `hold`, such as a notebook, keeps its own
handlers, except while a listener is at work; `handler_restored` puts them back
where TensorFlow takes them.
"""

import _posixsubprocess
import _thread
import contextlib
import functools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from trainer.errors import StartAgain
from trainer.runtime.process_exit import give_up

_HELD = (signal.SIGTERM,)
# A terminal that is closed sends SIGHUP. No C code takes its handler away, so
# it need not be held.
_ENDING = (*_HELD, signal.SIGHUP)
# Ends a system call of the main thread, such as a sleep, so that Python runs
# what is due there. By itself it does nothing.
_WAKING = signal.SIGURG
# To tell the peers and to close files; there is nothing to save.
_END_SECONDS = 10.0
# They start processes past the hooks of `os.register_at_fork`.
_STARTS = (
    (subprocess, "_fork_exec"),
    (_posixsubprocess, "fork_exec"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
)


class Terminated(BaseException):
    """SIGTERM or SIGHUP, raised in the main thread where nothing can be saved.

    Like `KeyboardInterrupt` it is not an `Exception`: the code that it
    interrupts, such as an import that may fail, must not handle it as an
    error of its own and continue.

    Args:
        number: the signal's.
    """

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"{name}; nothing more was saved")


class Listener:
    """Reacts to signals on a thread of its own, whatever the main thread does.

    It reads Python's wake-up descriptor, which is written at once. Listeners
    can be nested: the innermost one gets the signals.

    Args:
        numbers: the signals. One that is ignored on purpose, as under nohup,
            stays ignored.
        on_signal: called with a signal's number, on the listener's thread.
        in_main: called with it in the main thread as well, as soon as that
            runs Python; what it raises is raised there.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        on_signal: Callable[[int], None],
        in_main: Callable[[int], None] | None = None,
    ) -> None:
        self._numbers = numbers
        self._on_signal = on_signal
        self._in_main = in_main
        self._handlers: dict[int, Any] = {}
        self._waking: socket.socket | None = None
        self._fd_before = -1

    def start(self) -> bool:
        """Starts to listen, which only the main thread can do.

        Returns:
            Whether it listens now.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        hearing, self._waking = socket.socketpair()
        # Python requires this: a handler must not wait for a full buffer.
        self._waking.setblocking(False)
        # Before the handlers: a signal in between then reaches one of two
        # listeners at least.
        self._fd_before = signal.set_wakeup_fd(
            self._waking.fileno(), warn_on_full_buffer=False
        )
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)
        threading.Thread(
            target=self._listen, args=(hearing,), name="signals", daemon=True
        ).start()
        _listeners.append(self)
        return True

    def stop(self, *, keep: Sequence[int] = ()) -> None:
        """Gives the signals back, but for the handlers of those to keep."""
        if self._waking is None:
            return
        _listeners.remove(self)
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._handlers.items():
            if number not in keep:
                signal.signal(number, handler)
        self._handlers.clear()
        # The thread reads to the end of what has come.
        self._waking.close()
        self._waking = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._in_main is not None:
            self._in_main(number)

    def _listen(self, hearing: socket.socket) -> None:
        with hearing, contextlib.suppress(OSError):
            while numbers := hearing.recv(64):
                for number in numbers:
                    # The descriptor gets those of other handlers, too.
                    if number in self._numbers:
                        self._on_signal(number)


_listeners: list[Listener] = []
_has_held = False
_is_settled = False
_interruption: StartAgain | None = None


def hold() -> None:
    """Keeps SIGTERM from being lost; to be called on the first line.

    Threads inherit what is blocked, so there must be no other thread yet. Not
    for what a spawned process imports: SIGTERM just ends that.
    """
    global _has_held
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        return
    _has_held = True
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    signal.signal(_WAKING, lambda number, frame: None)
    Listener(_ENDING, _enforce_end, in_main=_interrupt).start()
    threading.Thread(target=_take, name="sigterm", daemon=True).start()
    for module, name in _STARTS:
        start = getattr(module, name, None)
        # A second call of `hold` must not wrap it again.
        if start is not None and not hasattr(start, "__wrapped__"):
            setattr(module, name, _unblocked(start))


def _take() -> None:
    """Takes SIGTERM while all other threads block it."""
    while True:
        _send_to_main(signal.sigwait(_HELD))


def _send_to_main(number: int) -> None:
    """Has Python's handler called, whatever C code has put in its place."""
    _thread.interrupt_main(signal.Signals(number))
    main = threading.main_thread().ident or 0
    # Not only once: it may be about to begin the system call.
    for seconds in (0.0, 0.1, 1.0):
        time.sleep(seconds)
        signal.pthread_kill(main, _WAKING)


@contextlib.contextmanager
def handler_restored() -> Iterator[None]:
    """Restores what SIGTERM does, whatever C code does to it inside."""
    if _has_held:
        # A start of multiprocessing's resource tracker unblocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        handler = signal.getsignal(signal.SIGTERM)
        in_main = threading.current_thread() is threading.main_thread()
        # Python does not notice that C code has installed another one.
        if in_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def settle() -> None:
    """Says that the exit code is known: a signal no longer raises anything.

    The process still ends if what is left takes longer than it may.
    """
    global _is_settled
    _is_settled = True


def interruption() -> StartAgain | None:
    """What `Terminated` stands for, if it was raised in the main thread.

    The code that it interrupted may have turned it into another exception.
    """
    return _interruption


def _interrupt(number: int) -> None:
    """Raises `Terminated`; only once, so that nothing interrupts the end."""
    global _interruption
    if _interruption is None and not _is_settled:
        terminated = Terminated(number)
        _interruption = StartAgain(str(terminated))
        raise terminated


def _enforce_end(number: int) -> None:
    """Ends the process if the main thread does not get to do so.

    Python may also have swallowed `Terminated`, as in a `__del__`.
    """
    why = (
        f"{signal.Signals(number).name}; nothing more was saved, and what was "
        f"under way has not ended within {_END_SECONDS:g} s"
    )
    # Most often the process ends meanwhile, and this thread with it.
    timer = threading.Timer(_END_SECONDS, give_up, (why,))
    timer.daemon = True
    timer.start()


def _unblocked(start: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function start processes that do not block SIGTERM.

    `Popen.terminate` would do nothing to one that does.
    """

    @functools.wraps(start)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        try:
            return start(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return call


def _before_fork() -> None:
    """Until the child has forgotten the handlers, a signal waits."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_fork_in_child() -> None:
    """A child has none of the threads here, and dies of SIGTERM."""
    global _interruption, _is_settled
    # Innermost first, as each one puts back what it found; `stop` takes it off
    # the list, hence the copy.
    for listener in reversed(_listeners.copy()):
        listener.stop()
    _interruption = None
    _is_settled = False
    signal.pthread_sigmask(
        signal.SIG_SETMASK, _mask.before - ({*_HELD} if _has_held else set())
    )


# By thread, as several may fork at the same time.
_mask = threading.local()
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork,
    after_in_child=_after_fork_in_child,
)
