"""Each task knows, all the time, whether the tasks it needs are alive.

A line joins each task with the first one. Both ends beat on it each second,
from a thread of their own. A line that breaks, or is silent for too long, is
a lost task; one that ends says so before. The first task tells the others,
so that all name the same cause. TensorFlow by itself waits for a host that
has vanished, or for a frozen process, for ever.
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
from trainer.plugin_api import Cluster, give_up
from trainer_plugins.control_plane.connection import Line
from trainer_plugins.control_plane.disconnect import hang_up_on
from trainer_plugins.control_plane.heartbeats import Lines

# Longer than a healthy process ever keeps its other threads from running:
# tracing and compiling let them in. An overloaded machine is slow on both
# ends of a line, see `Lines`.
SILENCE_SECONDS = 15.0
_SUSPECT_SECONDS = 4.0
# How long the main thread has to fail by itself, which is the better end.
_LEAVE_SECONDS = 5.0
_GOODBYE_SECONDS = 1.0
_MOST_CHARACTERS = 200


class Lifeline:
    """The lines of one task; made by `open_lifeline`.

    Args:
        cluster: the tasks, and which of them this is.
        tasks: name and address of those that take part, the first one first.
        connections: the first task has one to each other task, by name;
            another task has one, to the first.
        silence_seconds: a task that is silent for so long is lost.
        leave_seconds: how long after the run is over this task may be busy
            with something else, such as a callback of the user's; then the
            process ends as in `waiting`.
        spare: the tasks whose loss does not end the run.
        on_lost: called on a thread of its own for each such task that is
            lost, with this and its name.
        on_over: called once on a thread of its own when the run cannot go
            on, with the reason.

    Attributes:
        cluster: see above.
        name: this task's name.
        asked: why another task asks the run to save and leave; `None` if
            none does.
        losses: how often one of the `spare` tasks was lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: Mapping[str, str],
        connections: Mapping[str, socket.socket],
        *,
        silence_seconds: float = SILENCE_SECONDS,
        leave_seconds: float = math.inf,
        spare: Collection[str] = (),
        on_lost: Callable[["Lifeline", str], None] | None = None,
        on_over: Callable[[str], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.asked: str | None = None
        self.losses = 0
        self._tasks = dict(tasks)
        self._spare = frozenset(spare)
        self._leave_seconds = leave_seconds
        self._on_lost = on_lost
        self._on_over = on_over
        self._telling = threading.Lock()
        self._news = threading.Condition()
        self._inbox: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._over: str | None = None
        self._over_since = 0.0
        self._ended_well = False
        self._has_left = False
        self._waiting: tuple[float, float] | None = None
        self._lines = Lines(
            silence_seconds=silence_seconds,
            on_message=self._obey,
            on_lost=self._lose,
            each_beat=self._bound_waiting,
        )
        for name, connection in connections.items():
            self.add(name, connection)
        self._lines.start()

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
    def over(self) -> str | None:
        """Why the run cannot go on; `None` while it can."""
        return self._over

    def add(self, name: str, connection: socket.socket) -> None:
        """Adds the line of a task that came, or came back."""
        self._lines.add(Line(name, connection))

    @contextlib.contextmanager
    def waiting(self, limit_seconds: float) -> Iterator[None]:
        """Marks that the caller waits for other tasks, inside TensorFlow.

        If the run is over meanwhile and the caller still waits a little
        later, or if it waits for longer than the limit, the process ends
        with all stacks and `EXIT_START_AGAIN`: nothing can interrupt an
        operation that waits inside TensorFlow.

        Raises:
            StartAgain: the run is over already.
        """
        if self._over is not None:
            raise StartAgain(self._over)
        before, now = self._waiting, time.monotonic()
        self._waiting = (now, now + limit_seconds)
        try:
            yield
        finally:
            self._waiting = before

    def why_over(self, seconds: float) -> str | None:
        """Why the run cannot go on, after an operation has failed.

        A task that has been silent for a few beats is then lost, too.

        Args:
            seconds: how long to wait for what may come a little later.
        """
        lines = self._lines
        lines.silence_seconds = min(lines.silence_seconds, _SUSPECT_SECONDS)
        with self._news:
            self._news.wait_for(lambda: self._over is not None, seconds)
        return self._over

    def wait(self) -> None:
        """Returns when the run has ended well.

        Raises:
            StartAgain: it has ended otherwise.
        """
        with self._news:
            self._news.wait_for(lambda: self._over is not None)
        if not self._ended_well:
            raise StartAgain(self._over)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message to all that there is a line to."""
        # All get one message before any gets the next: who hears the first
        # may leave, and the others must not hear of that before.
        with self._telling:
            for line in self._lines.current():
                line.send(dict(message))

    def hear(self, name: str, seconds: float) -> dict[str, Any]:
        """The next message of another task.

        Raises:
            StartAgain: the run is over, or the message did not come in time.
        """
        with self._news:
            inbox = self._inbox[name]
            self._news.wait_for(lambda: inbox or self._over, seconds)
            if inbox:
                return inbox.popleft()
        silent = f"{self.cluster.label(name)} sent nothing for {seconds:g} s"
        raise StartAgain(self._over or silent)

    def ask_to_leave(self, reason: str) -> None:
        """Asks the run to save, because this task has to leave.

        Args:
            reason: why; it names the task, too.
        """
        self.tell({"leave": reason})

    def leave(self, error: BaseException | None = None) -> None:
        """Ends all lines, after saying why; does nothing the second time.

        Args:
            error: what ends this task; `None` if the run has ended well.
        """
        if self._has_left:
            return
        # What others do from now on is no news.
        self._has_left = True
        self.tell({"end": self._last_words(error)})
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for line in self._lines.close():
            line.finish(deadline)

    def end(self, reason: str, lost: str | None = None) -> None:
        """Notes the first cause, and tells the others.

        Args:
            reason: why the run cannot go on.
            lost: the task that is gone without a word, if one is.
        """
        if self._over is not None:
            return
        with self._news:
            self._over = reason
            self._over_since = time.monotonic()
            self._news.notify_all()
        if self.name == self.first:
            self.tell({"end": reason, "lost": lost})

        def act() -> None:
            # No call may wait for a host that has vanished: TensorFlow fails
            # as soon as its own connections to it end.
            if lost is not None:
                hang_up_on(self._tasks[lost])
            if self._on_over is not None:
                self._on_over(reason)

        threading.Thread(target=act, daemon=True).start()

    def _last_words(self, error: BaseException | None) -> str | None:
        if error is None:
            return None
        if self._over is not None and isinstance(error, StartAgain):
            # The first cause is what all should name.
            return self._over
        text = str(error).partition("\n")[0][:_MOST_CHARACTERS]
        if not isinstance(error, StartAgain | UserError):
            kind = type(error).__name__
            text = f"{kind}: {text}" if text else kind
        return f"{self.cluster.label(self.name)} ended: {text}"

    def _bound_waiting(self, now: float) -> None:
        if self._waiting is None:
            self._bound_leaving(now)
            return
        since, until = self._waiting
        if now > until:
            own, limit = self.cluster.label(self.name), until - since
            self.end(f"{own} waited {limit:g} s for its peers")
        elif now < max(since, self._over_since) + _LEAVE_SECONDS:
            return
        if self._over is not None:
            self.tell({"end": self._over})
            give_up(self._over)

    def _bound_leaving(self, now: float) -> None:
        if self._over is None or self._ended_well or self._has_left:
            return
        # Its peers cannot start again before it has ended.
        if now > self._over_since + self._leave_seconds:
            give_up(self._over)

    def _obey(self, line: Line, message: Mapping[str, Any]) -> None:
        if "leave" in message:
            self.asked = str(message["leave"])
        elif "end" not in message:
            with self._news:
                self._inbox[line.name].append(dict(message))
                self._news.notify_all()
        elif self._lines.drop(line):
            # The other end has said why it ends.
            why = message["end"]
            if self._over is None:
                self._ended_well = why is None
            reason = why or f"{self.cluster.label(line.name)} ended"
            self._without(line.name, reason, message.get("lost"))

    def _lose(self, line: Line, how: str) -> None:
        reason = f"lost {self.cluster.label(line.name)}"
        if how:
            reason = f"{reason}: {how}"
        self._without(line.name, reason, line.name)

    def _without(self, name: str, reason: str, lost: str | None) -> None:
        """Goes on without a task, or not at all; see `end`."""
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
            hang_up_on(self._tasks[name])
            if self._on_lost is not None:
                self._on_lost(self, name)

        threading.Thread(target=act, daemon=True).start()
