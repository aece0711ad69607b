"""The coordinator: admits tasks, watches their heartbeats, runs barriers.

It runs in the first task of a cluster. Each task keeps one connection to it,
from before TensorFlow starts until its exit. The messages, one a line:

    {"challenge": text}                      coordinator: prove who you are
    {"join": name, ...}                      task: takes part, see `Hello`
    {"search": name, ...}                    task: only wants the answer
    {"coordinator": name, "proof", "running": [name] or null}  the answer
    {"waiting": [name]}                      coordinator: who has not joined
    {"start": [name]}                        coordinator: go on to TensorFlow
    {"refuse": text}                         coordinator: a user's mistake
    {"missing": text}                        coordinator: too few have come
    {"barrier": n, "facts", "seconds"}       task: waits for the others
    {"barrier": n, "problem": text or null}  coordinator: all have come
    {"preempt": reason}                      both: save, and leave with 75
    {"suspect": true}                        task: an operation has failed
    {"leave": reason or null}                task: leaves; null is a good end
    {"end": reason, "lost", "well"}          coordinator: the run is over
    {"gone": name}                           coordinator: an expendable task

An empty line is a heartbeat. A run that has ended is never continued: its
tasks exit, and those that are started again join a new coordinator.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer_plugins.control_plane import background, timeouts
from trainer_plugins.control_plane.addresses import BACKLOG
from trainer_plugins.control_plane.admission import Admission
from trainer_plugins.control_plane.difference import difference, label, listed
from trainer_plugins.control_plane.hello import Hello, Secret
from trainer_plugins.control_plane.options import Options
from trainer_plugins.control_plane.stream import Stream, most_bytes

_ADMIT_SECONDS = 0.1
# Connections that have not said who they are, in addition to the tasks, which
# may all connect at once.
_MOST_UNKNOWN = 64


class Coordinator:
    """The state of a run; all methods run on the event loop's thread.

    Args:
        own: the introduction of the task in which this runs.
        secret: proves that a connection is one of this run's tasks.
        options: see `Options`.
    """

    def __init__(self, own: Hello, secret: Secret, options: Options) -> None:
        self._own = own
        self._secret = secret
        self._options = options
        self._silence_seconds = options.silence_seconds
        self._admission = Admission(own, options)
        self._members: list[str] | None = None
        self._is_over = False
        # Of the tasks that take part; of those that came during the run and
        # wait for its end; and of those that have not said who they are, the
        # oldest first.
        self._streams: dict[str, Stream] = {}
        self._waiting: list[Stream] = []
        self._unknown: list[Stream] = []
        self._barriers: dict[int, dict[str, Any]] = {}
        self._background: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Lets tasks join from now on; owns the listener."""
        self._server = await asyncio.start_server(
            self._serve,
            sock=listener,
            limit=most_bytes(len(self._own.tasks)),
            backlog=BACKLOG,
        )
        self._background = background.start(
            self._admit(),
            self._beat(),
            on_defect=lambda error: self.end(
                f"the coordinator failed: {error!r}"
            ),
        )

    async def close(self, reason: str | None = None) -> None:
        """Ends the run for all, when this task leaves; idempotent.

        Without a reason it has ended well.
        """
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._members is not None:
            text = reason or f"{self._label(self._own.name)} ended"
            self.end(text, well=reason is None)
        for work in self._background:
            work.cancel()
        for stream in self._unknown:
            stream.abort()
        known = [*self._streams.values(), *self._waiting]
        await asyncio.gather(*(stream.finish() for stream in known))

    def end(self, reason: str, *, well: bool = False, lost: str = "") -> None:
        """Tells all tasks the first cause; later ones are consequences.

        Args:
            reason: why the run cannot go on.
            well: whether it has ended as it should.
            lost: the task that vanished without a message, if one did.
        """
        if not self._is_over:
            self._is_over = True
            self._broadcast(end=reason, well=well, lost=lost or None)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serves one connection until it ends."""
        stream = Stream(reader, writer)
        self._unknown.append(stream)
        # A port scanner must not use up this process's files and memory.
        if len(self._unknown) > _MOST_UNKNOWN + len(self._own.tasks):
            self._unknown.pop(0).abort()
        try:
            hello = await self._greet(stream)
        finally:
            # It may have been removed, to make room for others.
            if stream in self._unknown:
                self._unknown.remove(stream)
        if hello is not None and hello.joins:
            if self._join(hello, stream):
                await self._listen(hello.name, stream)
            else:
                self._waiting.append(stream)
                while await stream.receive() is not None:
                    pass
                self._waiting.remove(stream)
        stream.abort()

    async def _greet(self, stream: Stream) -> Hello | None:
        """Returns a task's introduction; `None` for anything else."""
        challenge = secrets.token_hex(16)
        stream.send(challenge=challenge)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeouts.HELLO_SECONDS):
                message = await stream.receive(beats=False)
            hello = Hello.parse(message, self._secret, challenge)
            if hello is not None:
                stream.send(
                    coordinator=self._own.name,
                    proof=self._secret.proof(f"coordinator {hello.id}"),
                    running=self._members,
                )
                return hello
        logging.log_first_n(
            logging.INFO,
            "An unknown program connected from %s.",
            3,
            stream.origin,
        )
        return None

    async def _beat(self) -> None:
        """Sends heartbeats to all, and ends the connections of lost tasks."""
        async for elapsed in background.beats():
            for stream in [*self._streams.values(), *self._waiting]:
                stream.beat(elapsed, self._silence_seconds)

    async def _admit(self) -> None:
        """Waits until it is certain who takes part, and tells those."""
        known: list[Stream] = []
        while (decision := self._admission.decide()) is None:
            if known != (present := list(self._streams.values())):
                known = present
                # Each says at its own deadline who is missing.
                self._broadcast(waiting=self._admission.absent)
            await asyncio.sleep(_ADMIT_SECONDS)
        self._members = decision.get("start")
        self._broadcast(**decision)

    def _join(self, hello: Hello, stream: Stream) -> bool:
        """Adds a task; returns whether it takes part."""
        if self._members is not None:
            return self._join_late(hello, stream)
        present = self._streams.get(hello.name)
        is_another = self._admission.is_another(hello)
        if present is not None and present.is_alive and is_another:
            problem = (
                f"Two processes say that they are {hello.name}: "
                f"{stream.origin} and {present.origin}. "
                "Give each its own task index."
            )
            self._admission.note(problem)
            stream.send(refuse=problem)
            return False
        if present is not None:
            # Its host may have vanished, or it connects again.
            present.abort()
        self._streams[hello.name] = stream
        self._admission.add(hello)
        return True

    def _join_late(self, hello: Hello, stream: Stream) -> bool:
        """Adds a task that was started again, if the run can use it."""
        name = hello.name
        problem = self._admission.why_not(hello)
        if problem is not None:
            logging.warning("A task could not join: %s", problem)
            stream.send(refuse=problem)
        elif name in self._options.expendable and not self._is_over:
            # Its new process has its port, so the old one is gone.
            if name in self._streams:
                self._streams[name].abort()
                self._lost(name, "it was started again")
            self._streams[name] = stream
            logging.warning("%s is back.", self._label(name))
            stream.send(start=self._members)
            return True
        elif self._options.is_elastic and name not in (self._members or ()):
            self._broadcast(preempt=f"{name} is back")
        # It stays connected, to know when this run has ended.
        return False

    async def _listen(self, name: str, stream: Stream) -> None:
        """Handles the messages of a task until its connection ends."""
        while (message := await stream.receive()) is not None:
            if self._streams.get(name) is not stream:
                continue
            try:
                self._handle(name, message)
            except (LookupError, TypeError, ValueError):
                stream.abort("sent something other than messages")
        # Another connection of the same task may have replaced this one.
        if self._streams.get(name) is stream:
            self._lost(name, stream.how)

    def _handle(self, name: str, message: Mapping[str, Any]) -> None:
        if "leave" in message:
            self._left(name, message["leave"])
        elif "preempt" in message:
            self._broadcast(preempt=str(message["preempt"]))
        elif "suspect" in message:
            self._silence_seconds = min(
                self._silence_seconds, timeouts.SUSPECT_SILENCE_SECONDS
            )
        elif "barrier" in message:
            self._reach(name, message)

    def _reach(self, name: str, message: Mapping[str, Any]) -> None:
        """Notes that a task has reached a barrier."""
        # Those that are left are not all that have to come.
        if self._is_over:
            return
        number, seconds = int(message["barrier"]), float(message["seconds"])
        here = self._barriers.setdefault(number, {})
        if not here:
            asyncio.get_running_loop().call_later(
                seconds, self._give_up_barrier, number, seconds
            )
        here[name] = {"tasks": {}, "facts": message["facts"]}
        if here.keys() >= self._streams.keys():
            del self._barriers[number]
            # In the cluster's order: the others are compared with the first.
            found = {n: here[n] for n in self._own.tasks if n in here}
            self._broadcast(barrier=number, problem=difference(found))

    def _give_up_barrier(self, number: int, seconds: float) -> None:
        here = self._barriers.get(number)
        if here is not None:
            late = [self._label(n) for n in self._streams if n not in here]
            self.end(f"{listed(late)} did not reach a barrier in {seconds:g} s")

    def _left(self, name: str, reason: str | None) -> None:
        self._streams.pop(name, None)
        text = reason or f"{self._label(name)} ended"
        self._go_on_without(name, text, well=reason is None)

    def _lost(self, name: str, how: str) -> None:
        del self._streams[name]
        text = f"lost {self._label(name)}"
        self._go_on_without(name, f"{text}: {how}" if how else text, lost=name)

    def _go_on_without(
        self, name: str, reason: str, *, well: bool = False, lost: str = ""
    ) -> None:
        """Goes on without a task if it is not needed; else ends the run."""
        if self._members is None:
            self._admission.remove(name)
        elif name not in self._options.expendable:
            self.end(reason, well=well, lost=lost)
        elif not self._is_over:
            logging.warning("%s%s.", reason[0].upper(), reason[1:])
            own = self._streams.get(self._own.name)
            if own is not None:
                own.send(gone=name)

    def _label(self, name: str) -> str:
        return label(name, self._own.tasks)

    def _broadcast(self, **message: Any) -> None:
        for stream in list(self._streams.values()):
            stream.send(**message)
