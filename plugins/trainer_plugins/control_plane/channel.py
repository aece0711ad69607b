"""The channel between tasks: heartbeats, messages, and the cause of an end.

Every task has one connection to the first task. Both ends send a heartbeat
each second from their own thread. A connection that breaks or stays silent
for too long means a lost task; a task that ends in order says so first. The
first task passes the cause on, so that all tasks name the same one. Without
this, TensorFlow waits forever for a vanished host or a frozen process.
"""

import contextlib
import math
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from absl import logging

from trainer import StartAgain, UserError
from trainer.plugin_api import Cluster, give_up, signals
from trainer_plugins.control_plane.connection import Connection
from trainer_plugins.control_plane.disconnect import disconnect_from
from trainer_plugins.control_plane.heartbeats import Connections

# Longer than a healthy process ever blocks its other threads: tracing and
# compiling release Python's lock now and then. An overloaded machine is slow
# at both ends of a connection, see `Connections`.
SILENCE_SECONDS = 15.0
# A few missed heartbeats, see `wait_for_end`.
_SUSPECT_SECONDS = 4.0
# How long the main thread may take to fail on its own: that still closes
# callbacks and writes the exit report, which ending the process cannot.
_LEAVE_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0
# How much of an exception's message the other tasks repeat.
_MOST_CHARACTERS = 200


class Channel:
    """One task's connections to its peers; created by `open_channel`.

    Args:
        cluster: the tasks, and which of them this is.
        tasks: names and addresses of the tasks that take part, first task
            first.
        sockets: connected sockets by task name. The first task has one for
            every other task; every other task has one, to the first.
        silence_seconds: a task that is silent for this long counts as lost.
        leave_seconds: how long this task may be busy with something else,
            such as a user's callback, after the run has ended; then the
            process is ended.
        spare: the tasks whose loss does not end the run.
        on_lost: called on a separate thread with this channel and a name
            for every spare task that is lost.
        on_end: called once, on a separate thread, with the reason when the
            run cannot go on.

    Attributes:
        cluster: see above.
        name: this task's name.
        leave_reason: why another task requests that the run save and leave;
            `None` if none does.
        losses: how often one of the `spare` tasks was lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: Mapping[str, str],
        sockets: Mapping[str, socket.socket],
        *,
        silence_seconds: float = SILENCE_SECONDS,
        leave_seconds: float = math.inf,
        spare: Collection[str] = (),
        on_lost: Callable[["Channel", str], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.leave_reason: str | None = None
        self.losses = 0
        self._tasks = dict(tasks)
        self._spare = frozenset(spare)
        self._leave_seconds = leave_seconds
        self._on_lost = on_lost
        self._on_end = on_end
        self._broadcast_lock = threading.Lock()
        self._changed = threading.Condition()
        self._inbox: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._end_reason: str | None = None
        self._ended_at = 0.0
        self._ended_well = False
        self._has_left = False
        # Since when and until when the main thread waits.
        self._waiting: tuple[float, float] | None = None
        self._connections = Connections(
            silence_seconds=silence_seconds,
            on_message=self._handle_message,
            on_lost=self._handle_loss,
            each_beat=self._enforce_wait_limit,
        )
        for name, sock in sockets.items():
            self.add(name, sock)
        # Last, because its callbacks use everything above.
        self._connections.start()

    @property
    def is_open(self) -> bool:
        """Whether this task still takes part."""
        return not self._has_left

    @property
    def first(self) -> str:
        """The first task's name."""
        return next(iter(self._tasks))

    @property
    def others(self) -> list[str]:
        """All tasks but this one, in the cluster's order."""
        return [name for name in self._tasks if name != self.name]

    @property
    def end_reason(self) -> str | None:
        """Why the run cannot go on; `None` while it can."""
        return self._end_reason

    def add(self, name: str, sock: socket.socket) -> None:
        """Adds the connection of a task that has joined or rejoined."""
        self._connections.add(Connection(name, sock))

    @contextlib.contextmanager
    def waiting(self, limit_seconds: float) -> Iterator[None]:
        """Marks that the caller waits for other tasks inside TensorFlow.

        The process ends with all stacks and `EXIT_START_AGAIN` if the run
        ends meanwhile and the caller still waits a little later, or if it
        waits for longer than the limit: nothing can interrupt an operation
        that waits inside TensorFlow.

        Raises:
            StartAgain: the run has already ended.
        """
        if self._end_reason is not None:
            raise StartAgain(self._end_reason)
        # A nested call must not remove the limit of the outer one.
        before, now = self._waiting, time.monotonic()
        self._waiting = (now, now + limit_seconds)
        try:
            yield
        finally:
            self._waiting = before

    def wait_for_end(self, seconds: float) -> str | None:
        """Returns why the run cannot go on, after an operation has failed.

        From then on, a few missed heartbeats are enough to lose a task.

        Args:
            seconds: how long to wait for a reason that is on its way.
        """
        # A failed operation is evidence enough to be less lenient. Otherwise
        # a frozen peer would be found only after this wait, and not named.
        connections = self._connections
        connections.silence_seconds = min(
            connections.silence_seconds, _SUSPECT_SECONDS
        )
        with self._changed:
            self._changed.wait_for(
                lambda: self._end_reason is not None, seconds
            )
        return self._end_reason

    def wait(self) -> None:
        """Blocks until the run has ended well.

        Raises:
            StartAgain: it ended in any other way.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end_reason is not None)
        if not self._ended_well:
            raise StartAgain(self._end_reason)

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Sends a message to every connected task."""
        # All receive one message before any receives the next. A task may
        # leave on the first one, and the others must not learn that first:
        # they would take its leaving for the cause.
        with self._broadcast_lock:
            for connection in self._connections.current():
                connection.send(dict(message))

    def receive(self, name: str, seconds: float) -> dict[str, Any]:
        """Returns the next message from another task.

        Raises:
            StartAgain: the run has ended, or no message came in time.
        """
        with self._changed:
            inbox = self._inbox[name]
            self._changed.wait_for(lambda: inbox or self._end_reason, seconds)
            # A message that came before the end is still delivered. It may say
            # why: after facts that differ, the first task ends at once.
            if inbox:
                return inbox.popleft()
        silent = f"{self.cluster.label(name)} sent nothing for {seconds:g} s"
        raise StartAgain(self._end_reason or silent)

    def request_leave(self, reason: str) -> None:
        """Requests that the run save, because this task has to leave.

        Args:
            reason: why, including this task's name.
        """
        self.broadcast({"leave": reason})

    def leave(self, error: BaseException | None = None) -> None:
        """Closes all connections after giving a reason; idempotent.

        Args:
            error: what ends this task; `None` if the run has ended well.
        """
        if self._has_left:
            return
        # From here on, peers that disconnect only follow suit.
        self._has_left = True
        self.broadcast({"end": self._farewell(error)})
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for connection in self._connections.close():
            connection.finish(deadline)

    def end(self, reason: str, lost: str | None = None) -> None:
        """Records the first cause, and passes it on to the others.

        Args:
            reason: why the run cannot go on.
            lost: the task that vanished without a message, if one did.
        """
        if self._end_reason is not None:
            return
        with self._changed:
            self._end_reason = reason
            self._ended_at = time.monotonic()
            self._changed.notify_all()
        # The others are connected to the first task only, and name its cause.
        if self.name == self.first:
            self.broadcast({"end": reason, "lost": lost})

        def act() -> None:
            # TensorFlow has no time-out for calls to a vanished host; they
            # fail as soon as its own connections to that host end.
            if lost is not None:
                disconnect_from(self._tasks[lost])
            if self._on_end is not None:
                self._on_end(reason)

        # Not on the heartbeats' thread, which usually calls this: while a name
        # server is slow, this task would look frozen to the others.
        threading.Thread(target=act, daemon=True).start()

    def _farewell(self, error: BaseException | None) -> str | None:
        if error is None:
            return None
        if self._end_reason is not None and isinstance(
            error, StartAgain | signals.Terminated
        ):
            # All tasks should name the first cause, not the latest.
            return self._end_reason
        text = str(error).partition("\n")[0][:_MOST_CHARACTERS]
        if not isinstance(error, StartAgain | UserError | signals.Terminated):
            kind = type(error).__name__
            text = f"{kind}: {text}" if text else kind
        return f"{self.cluster.label(self.name)} ended: {text}"

    def _enforce_wait_limit(self, now: float) -> None:
        # This runs on the heartbeats' thread: the main thread is the one that
        # waits, perhaps forever.
        if self._waiting is None:
            self._enforce_leave_limit(now)
            return
        since, until = self._waiting
        if now > until:
            own, limit = self.cluster.label(self.name), until - since
            self.end(f"{own} waited {limit:g} s for its peers")
        elif now < max(since, self._ended_at) + _LEAVE_SECONDS:
            return
        if self._end_reason is not None:
            # `give_up` does not return, so that nothing would call `leave`.
            self.broadcast({"end": self._end_reason})
            give_up(self._end_reason)

    def _enforce_leave_limit(self, now: float) -> None:
        if self._end_reason is None or self._ended_well or self._has_left:
            return
        # Its peers cannot start again before it has ended.
        if now > self._ended_at + self._leave_seconds:
            give_up(self._end_reason)

    def _handle_message(
        self, connection: Connection, message: Mapping[str, Any]
    ) -> None:
        if "leave" in message:
            # The main thread reads it between two graph calls.
            self.leave_reason = str(message["leave"])
        elif "end" not in message:
            with self._changed:
                self._inbox[connection.name].append(dict(message))
                self._changed.notify_all()
        elif self._connections.drop(connection):
            why = message["end"]
            # A second message must not turn a failure into a success.
            if self._end_reason is None:
                self._ended_well = why is None
            reason = why or f"{self.cluster.label(connection.name)} ended"
            self._task_gone(connection.name, reason, message.get("lost"))

    def _handle_loss(self, connection: Connection, how: str) -> None:
        reason = f"lost {self.cluster.label(connection.name)}"
        if how:
            reason = f"{reason}: {how}"
        self._task_gone(connection.name, reason, connection.name)

    def _task_gone(self, name: str, reason: str, lost: str | None) -> None:
        """Goes on without a task if it is spare; else ends the run."""
        if self._has_left:
            return
        if name in self._spare:
            self._spare_task_lost(name, reason)
        else:
            self.end(reason, lost)

    def _spare_task_lost(self, name: str, reason: str) -> None:
        self.losses += 1
        logging.warning("%s%s.", reason[0].upper(), reason[1:])

        def act() -> None:
            disconnect_from(self._tasks[name])
            if self._on_lost is not None:
                self._on_lost(self, name)

        threading.Thread(target=act, daemon=True).start()
