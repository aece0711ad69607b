"""A task's side of the control plane: joins, and knows who is lost.

TensorFlow waits silently for missing peers for up to an hour, and forever for
a vanished host or a frozen process. So the tasks join a coordinator before
TensorFlow starts, and stay connected to it until they exit.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from absl import logging

from trainer import StartAgain, UserError
from trainer.plugin_api import Cluster, give_up, signals
from trainer_plugins.control_plane.addresses import (
    check_names,
    listen,
    reserved_port,
)
from trainer_plugins.control_plane.channel import (
    Channel,
    disconnect_from,
    guarded,
)
from trainer_plugins.control_plane.coordinator import Coordinator
from trainer_plugins.control_plane.difference import label
from trainer_plugins.control_plane.joining import Joining
from trainer_plugins.control_plane.options import (
    GOODBYE_SECONDS,
    HEARTBEAT_SECONDS,
    Options,
)

# How long the coordinator may take to pass on who was lost.
_NEWS_SECONDS = 2.0
# How long the main thread may take to fail on its own: that still closes
# callbacks and writes the exit report, which ending the process cannot.
_LEAVE_SECONDS = 5.0
# How much of an exception's message the other tasks repeat.
_MOST_CHARACTERS = 200
_POLL_SECONDS = 0.1
_T = TypeVar("_T")


class Agent:
    """One task of a run; the constructor returns when the run may start.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that take part; the first task coordinates.
        facts: JSON values that must be equal everywhere, such as versions.
        options: see `Options`.
        on_end: called once, on a separate thread, with the reason when the run
            cannot continue.

    Attributes:
        cluster: the tasks that take part. In an elastic cluster some may be
            missing; the workers are then renumbered.
        name: this task's name in the cluster as it was given.
        end_reason: why the run cannot continue; `None` while it can.
        preempt_reason: why the run should save and leave; `None` if it need
            not.
        losses: how often an expendable task was lost; counted only in the
            coordinator's process.

    Raises:
        StartAgain: a task is missing; the message names it.
        UserError: the tasks differ, two claim to be the same one, a port is
            taken, or `min_workers` is impossible.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        jobs: Collection[str],
        facts: Mapping[str, Any],
        options: Options,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.name = cluster.name
        self.preempt_reason: str | None = None
        self.losses = 0
        self._tasks = dict(cluster.tasks(*jobs))
        self._options = options
        self._on_end = on_end
        self._changed = threading.Condition()
        self._barriers = 0
        self._problems: dict[int, str | None] = {}
        self.end_reason: str | None = None
        self._ended_at = 0.0
        self._ended_well = False
        self._has_left = False
        # Since when and until when the main thread waits for other tasks.
        self._waiting: tuple[float, float] | None = None
        self._channel: Channel | None = None
        self._attempt: Future[list[str]] | None = None
        self._background: list[asyncio.Task[None]] = []
        options.check(self._tasks)
        if options.is_elastic:
            facts = {**facts, "min_workers": options.min_workers}
        joining = Joining(self.name, self._tasks, facts, options)
        self._first = next(iter(self._tasks))
        self._coordinator = None
        if self.name == self._first:
            self._coordinator = Coordinator(
                joining.hello, self._tasks, options, listen(self._tasks)
            )
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()
        self._stop = asyncio.Event()
        threading.Thread(
            target=self._run_loop,
            args=(runner,),
            name="control-plane",
            daemon=True,
        ).start()
        try:
            with reserved_port(cluster.address, owner=self.name):
                self._attempt = self._spawn(self._join(joining))
                members = _result(self._attempt)
                names = check_names(self._tasks, options.start_seconds)
                _result(self._spawn(names))
        except BaseException as error:
            # Also after Ctrl-C or SIGTERM: the others should learn the reason,
            # and not merely see a broken connection.
            self.leave(error)
            raise
        self.cluster = cluster.among(members)
        logging.info(
            "%d of %d tasks are present.", len(members), len(self._tasks)
        )

    def label(self, name: str) -> str:
        """See `difference.label`."""
        return label(name, self._tasks)

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
        if self.end_reason is not None:
            raise StartAgain(self.end_reason)
        # A nested call must not remove the limit of the outer one.
        before, now = self._waiting, time.monotonic()
        self._waiting = (now, now + limit_seconds)
        try:
            yield
        finally:
            self._waiting = before

    def why_failed(self) -> str | None:
        """Returns why the run cannot continue, if an operation has failed."""
        with self._changed:
            # A task that was lost may not be known to be silent yet.
            self._changed.wait_for(
                lambda: self.end_reason is not None,
                self._options.silence_seconds + _NEWS_SECONDS,
            )
        return self.end_reason

    def wait(self) -> None:
        """Blocks until the run has ended well.

        Raises:
            StartAgain: it ended in any other way.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.end_reason is not None)
        if not self._ended_well:
            raise StartAgain(self.end_reason)

    def barrier(self, facts: Mapping[str, Any], *, seconds: float) -> None:
        """Waits until all tasks are here, with the same facts.

        Raises:
            UserError: the facts differ; the message says on which tasks.
            StartAgain: a task is lost or did not come in time; it is named.
        """
        self._barriers += 1
        number = self._barriers
        self._send(barrier=number, facts=dict(facts), seconds=seconds)
        with self._changed:
            # The coordinator names who is late; it is lost if it says nothing.
            self._changed.wait_for(
                lambda: number in self._problems or self.end_reason,
                seconds + self._options.silence_seconds,
            )
            # An answer that came before the end still counts: all have it.
            if number not in self._problems:
                silent = f"no answer from the coordinator in {seconds:g} s"
                raise StartAgain(self.end_reason or silent)
            problem = self._problems.pop(number)
        if problem:
            raise UserError(problem)

    def preempt(self, reason: str) -> None:
        """Requests that the run save, because this task has to leave.

        The reason includes this task's name.
        """
        self._send(preempt=reason)

    def end(self, reason: str) -> None:
        """Ends this task's part in the run; `wait` raises the reason."""
        # The loop is closed once this task has left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, reason)

    def leave(self, error: BaseException | None = None) -> None:
        """Closes the connection after giving a reason; idempotent.

        Args:
            error: the error that ends this task; `None` if the run has ended
                well.
        """
        if self._has_left:
            return
        # From here on, peers that disconnect only follow suit.
        self._has_left = True
        if self._attempt is not None:
            self._attempt.cancel()
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._spawn(self._part(self._farewell(error))).result(
                2 * GOODBYE_SECONDS
            )
        self._loop.call_soon_threadsafe(self._stop.set)

    def _run_loop(self, runner: asyncio.Runner) -> None:
        async def until_left() -> None:
            await self._stop.wait()

        # At its end it cancels tasks that still run.
        with runner:
            runner.run(until_left())

    async def _part(self, reason: str | None) -> None:
        if self._coordinator is not None:
            await self._coordinator.close(reason)
        elif self._channel is not None:
            self._channel.send(leave=reason)
            await self._channel.finish()

    def _farewell(self, error: BaseException | None) -> str | None:
        if error is None:
            return None
        if self.end_reason is not None and isinstance(
            error, StartAgain | signals.Terminated
        ):
            # All tasks should name the first cause, not the latest.
            return self.end_reason
        text = str(error).partition("\n")[0][:_MOST_CHARACTERS]
        if not isinstance(error, StartAgain | UserError | signals.Terminated):
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
        return f"{self.label(self.name)} ended: {text}"

    async def _join(self, joining: Joining) -> list[str]:
        """Joins the run; its connection is served from then on."""
        if self._coordinator is not None:
            await self._coordinator.serve()
        self._channel, members = await joining.run()
        self._background = [
            asyncio.create_task(guarded(work, self._end))
            for work in (self._listen(self._channel), self._enforce_limits())
        ]
        return members

    async def _listen(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            self._handle(message)
        channel.abort()
        how = f": {channel.how}" if channel.how else ""
        self._end(f"lost {self.label(self._first)}{how}", lost=self._first)

    async def _enforce_limits(self) -> None:
        """Ends the process if its main thread waits, perhaps forever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            reason = self._why_give_up(time.monotonic())
            if reason is None or self._has_left or self._channel is None:
                continue
            # `give_up` does not return, so that nothing would call `leave`.
            self._channel.send(leave=reason)
            if self._coordinator is not None:
                self._coordinator.end(reason)
            give_up(reason, hangs=self.end_reason is None)

    def _why_give_up(self, now: float) -> str | None:
        since, until = self._waiting or (-math.inf, math.inf)
        ended = self.end_reason is not None
        if now > until and (not ended or self._ended_well):
            own = self.label(self.name)
            return f"{own} waited {until - since:g} s for its peers"
        if not ended or self._ended_well:
            return None
        # Its peers cannot start again before it has ended.
        limit = _LEAVE_SECONDS if self._waiting else self._options.leave_seconds
        over = now > max(since, self._ended_at) + limit
        return self.end_reason if over else None

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "preempt" in message:
            # The main thread reads it between two graph calls.
            self.preempt_reason = str(message["preempt"])
        elif "barrier" in message:
            with self._changed:
                self._problems[int(message["barrier"])] = message["problem"]
                self._changed.notify_all()
        elif "gone" in message:
            self.losses += 1
            _in_thread(disconnect_from, self._tasks[message["gone"]])
        elif "end" in message:
            self._end(
                str(message["end"]),
                lost=message.get("lost"),
                well=message.get("well") is True,
            )

    def _end(
        self, reason: str, *, lost: str | None = None, well: bool = False
    ) -> None:
        """Records the first cause, and makes operations that wait fail."""
        if self.end_reason is not None or self._has_left:
            return
        with self._changed:
            self.end_reason, self._ended_well = reason, well
            self._ended_at = time.monotonic()
            self._changed.notify_all()
        # TensorFlow has no time-out for calls to a vanished host; they fail as
        # soon as its own connections to that host end.
        if lost is not None:
            _in_thread(disconnect_from, self._tasks[lost])
        if self._on_end is not None:
            _in_thread(self._on_end, reason)

    def _send(self, **message: Any) -> None:
        if self._channel is not None and not self._has_left:
            send = self._channel.send
            self._loop.call_soon_threadsafe(lambda: send(**message))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _result(future: "Future[_T]") -> _T:
    """Returns a result; a held signal is handled meanwhile."""
    # `trainer.runtime.signals` interrupts the main thread only where it runs
    # Python now and then.
    while not concurrent.futures.wait([future], _POLL_SECONDS).done:
        pass
    return future.result()


def _in_thread(act: Callable[..., None], *given: Any) -> None:
    # Not on the event loop's thread: while a name server is slow, this task
    # would look frozen to the others.
    threading.Thread(target=act, args=given, daemon=True).start()
