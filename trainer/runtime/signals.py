"""Hears signals: from the first line of a process, in all its phases.

Python runs a handler in the main thread, which may be inside TensorFlow for
minutes, and TensorFlow installs a handler of its own that swallows SIGTERM
once a multi-worker strategy exists. So each role of a process hears signals
through a `Listener`, on a thread, and `python -m trainer` begins with `hold`:

    hold       the first line: SIGTERM is blocked in this thread and in all
               that it starts. Nobody's handler runs; one thread waits for the
               signal in `sigwait` and hands it to Python's own handler.
    kept       around whatever may install another handler, that is, where the
               strategy is made. Then ours is back, and the main thread no
               longer blocks the signal.
    Listener   whoever has something to save, such as a training run.

As long as nobody listens, SIGTERM ends the process with `StartAgain`. A
program that has not called `hold`, such as a notebook, keeps its own handlers
but for the time of a `Listener`.
"""

import _posixsubprocess
import _thread
import contextlib
import ctypes
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
# Who has nothing to save needs no longer to say goodbye.
_GOODBYE_SECONDS = 10.0
# More than C's `struct sigaction` takes anywhere.
_ACTION_BYTES = 256
# What starts processes without `os.fork`, whose children have a hook.
_STARTS = (
    (subprocess, "_fork_exec"),
    (_posixsubprocess, "fork_exec"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
)


class Listener:
    """Hears signals on a thread of its own, whatever the main thread does.

    What arrives at Python's wake-up descriptor does so at once. Listeners may
    be nested: the last one that was started hears, and stops first.

    Args:
        numbers: the signals. What is ignored on purpose, as under nohup, stays
            ignored.
        hear: called with a signal's number, on the listener's thread.
        in_main: called with it in the main thread as well, as soon as that
            gets to run Python; what it raises is raised there.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        hear: Callable[[int], None],
        in_main: Callable[[int], None] | None = None,
    ) -> None:
        self._numbers = numbers
        self._hear = hear
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
        self._waking.setblocking(False)
        # Before the handlers: a signal in between is heard by either of two
        # listeners, and not by none.
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
        """Gives the signals back.

        Args:
            keep: signals whose handler stays, although nobody listens.
        """
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
                        self._hear(number)


class _Hold:
    """A thread that takes SIGTERM while all others block it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._taker = threading.Thread(
            target=self._take, name="sigterm", daemon=True
        )
        self._taker.start()

    def _take(self) -> None:
        is_over = False
        while not is_over:
            signal.sigwait(_HELD)
            with self._lock:
                is_over = self._is_over
                # `end` wakes this thread by one more: where another is left,
                # either of the two is real.
                is_real = not is_over or signal.SIGTERM in signal.sigpending()
            if is_real:
                # No C code can be in the way of this one.
                _thread.interrupt_main(signal.SIGTERM)

    def end(self) -> None:
        """Lets the main thread, which calls this, have the signal again."""
        with self._lock:
            self._is_over = True
            signal.pthread_kill(self._taker.ident or 0, signal.SIGTERM)
        self._taker.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


_listeners: list[Listener] = []
_hold: _Hold | None = None
_has_held = False
_interruption: StartAgain | None = None


def hold() -> None:
    """Keeps SIGTERM from being lost; the first line of a process.

    Later threads inherit what is blocked, so there must be none yet.
    """
    global _hold, _has_held
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        return
    _has_held = True
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    Listener(_HELD, _see_it_end, in_main=_interrupt).start()
    _hold = _Hold()
    for module, name in _STARTS:
        start = getattr(module, name, None)
        if start is not None and not hasattr(start, "__wrapped__"):
            setattr(module, name, _unblocked(start))


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What SIGTERM does is the same afterwards, whatever is made inside.

    After `hold` nothing is lost meanwhile, and the main thread does not block
    the signal any more: what it starts from now on need not, either.
    """
    global _hold
    libc = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, action)
    handler = signal.getsignal(signal.SIGTERM)
    if _hold is not None:
        # Starting a helper of `multiprocessing` may have lifted it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        # Python's table shows whether it was C code that changed it.
        if signal.getsignal(signal.SIGTERM) == handler:
            libc.sigaction(signal.SIGTERM, action, None)
        in_main = threading.current_thread() is threading.main_thread()
        if _hold is not None and in_main:
            ending, _hold = _hold, None
            ending.end()


def interruption() -> StartAgain | None:
    """What SIGTERM has raised in the main thread while nobody listened.

    The code that it broke off may have made another exception of it.
    """
    return _interruption


def _interrupt(number: int) -> None:
    """Raises `StartAgain`, but only once: what it begins is to go on."""
    global _interruption
    if _interruption is None:
        name = signal.Signals(number).name
        _interruption = StartAgain(f"{name}; nothing more was saved")
        raise _interruption


def _see_it_end(number: int) -> None:
    """Ends the process if the main thread does not get to do so."""
    # This thread ends with the process, which is what it waits for.
    time.sleep(_GOODBYE_SECONDS)
    give_up(
        f"{signal.Signals(number).name}; nothing more was saved, and what was "
        f"under way has not ended within {_GOODBYE_SECONDS:g} s"
    )


def _unblocked(start: Callable[..., Any]) -> Callable[..., Any]:
    """Starts processes that do not inherit a blocked SIGTERM.

    Else `Popen.terminate` would do nothing. Threads that were started while
    it was held block it for good, and may run Python: in a `py_function`,
    where a generator gives the data.
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
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_fork_in_child() -> None:
    """A child has none of the threads here, and dies of SIGTERM."""
    global _hold, _interruption
    for listener in reversed(_listeners.copy()):
        listener.stop()
    _hold = _interruption = None
    signal.pthread_sigmask(
        signal.SIG_SETMASK,
        _mask.before - ({*_HELD} if _has_held else set()),
    )


_mask = threading.local()
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork,
    after_in_child=_after_fork_in_child,
)
