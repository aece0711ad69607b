"""The coordinator: admits tasks, notices who is lost, runs barriers.

It runs in the first task of a cluster and nowhere else. Each task keeps one
connection to it, from before TensorFlow starts until its exit. The messages,
one a line:

    {"challenge": text}                      coordinator: prove who you are
    {"join": name, ...}                      task: takes part, see `Hello`
    {"proof": text}                          coordinator: proves who it is
    {"running": true}                        coordinator: a run continues, wait
    {"start": [name]}                        coordinator: proceed to TensorFlow
    {"refuse": text}                         coordinator: a user's mistake
    {"missing": text}                        coordinator: too few have come
    {"barrier": n, "facts", "seconds"}       task: waits for the others
    {"barrier": n, "problem": text or null}  coordinator: all have come
    {"preempt": reason}                      both: save, and leave with 75
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

from trainer_plugins.control_plane.addresses import BACKLOG
from trainer_plugins.control_plane.admission import (
    Admission,
    Hello,
    is_proof,
    proof,
)
from trainer_plugins.control_plane.channel import (
    Channel,
    guarded,
    most_bytes,
)
from trainer_plugins.control_plane.difference import difference, label, listed
from trainer_plugins.control_plane.options import Options

_ADMIT_SECONDS = 0.1
# A connection must have said within this time which task it is.
_HELLO_SECONDS = 10.0
# Connections that have not said who they are, in addition to the tasks, which
# may all connect at once.
_MOST_UNKNOWN = 64


class Coordinator:
    """The state of a run; all methods run on the event loop's thread.

    Args:
        own: the introduction of the task in which this runs.
        tasks: the address of every task.
        options: see `Options`.
        listener: where the tasks connect; closed at the end.
    """

    def __init__(
        self,
        own: Hello,
        tasks: Mapping[str, str],
        options: Options,
        listener: socket.socket,
    ) -> None:
        self._listener = listener
        self._own = own
        self._tasks = tasks
        self._options = options
        self._admission = Admission(own, tasks, options)
        self._members: list[str] | None = None
        self._is_over = False
        # Of the tasks that take part; of those that came during the run and
        # wait for its end; and of those that have not said who they are, the
        # oldest first.
        self._channels: dict[str, Channel] = {}
        self._waiting: list[Channel] = []
        self._unknown: list[Channel] = []
        self._barriers: dict[int, dict[str, Any]] = {}
        self._admitting: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        """Lets tasks join from now on."""
        self._server = await asyncio.start_server(
            self._serve,
            sock=self._listener,
            limit=most_bytes(len(self._tasks)),
            backlog=BACKLOG,
        )
        self._admitting = asyncio.create_task(guarded(self._admit(), self.end))

    async def close(self, reason: str | None) -> None:
        """Ends the run for all, when this task leaves.

        Without a reason it has ended well.
        """
        if self._server is None or self._admitting is None:
            return
        self._server.close()
        self._admitting.cancel()
        if self._members is not None:
            text = reason or f"{label(self._own.name, self._tasks)} ended"
            self.end(text, well=reason is None)
        for channel in self._unknown:
            channel.abort()
        known = [*self._channels.values(), *self._waiting]
        await asyncio.gather(*(channel.finish() for channel in known))

    def end(self, reason: str, *, well: bool = False, lost: str = "") -> None:
        """Tells all tasks the first cause; later ones are consequences.

        Args:
            reason: why the run cannot continue.
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
        channel = Channel(reader, writer, self._options.silence_seconds)
        self._unknown.append(channel)
        # A port scanner must not use up this process's files and memory.
        if len(self._unknown) > _MOST_UNKNOWN + len(self._tasks):
            self._unknown.pop(0).abort()
        hello = await self._greet(channel)
        # It may have been removed, to make room for others.
        if channel in self._unknown:
            self._unknown.remove(channel)
        if hello is None:
            logging.log_first_n(
                logging.INFO,
                "An unknown program connected from %s.",
                3,
                channel.origin,
            )
        elif self._join(hello, channel):
            await self._listen(hello.name, channel)
        else:
            # It stays connected, to know when this run has ended.
            self._waiting.append(channel)
            while await channel.receive() is not None:
                pass
            self._waiting.remove(channel)
        channel.abort()

    async def _greet(self, channel: Channel) -> Hello | None:
        """Returns a task's introduction; `None` for anything else."""
        challenge = secrets.token_hex(16)
        channel.send(challenge=challenge)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_SECONDS):
                message = await channel.receive()
            hello = Hello.parse(message)
            given = (message or {}).get("proof")
            if hello is not None and is_proof(given, f"task {challenge}"):
                channel.send(proof=proof(f"coordinator {hello.id}"))
                return hello
        return None

    async def _admit(self) -> None:
        """Waits until it is certain who takes part, and tells those."""
        while (decision := self._admission.decide()) is None:
            await asyncio.sleep(_ADMIT_SECONDS)
        self._members = decision.get("start")
        self._broadcast(**decision)

    def _join(self, hello: Hello, channel: Channel) -> bool:
        """Adds a task; returns whether it takes part."""
        if self._members is not None:
            return self._join_late(hello, channel)
        present = self._channels.get(hello.name)
        is_another = self._admission.is_another(hello)
        if present is not None and present.is_alive and is_another:
            problem = (
                f"Two processes claim to be {hello.name}: {channel.origin} and "
                f"{present.origin}. Give each its own task index."
            )
            self._admission.note(problem)
            channel.send(refuse=problem)
            return False
        if present is not None:
            # Its host may have vanished, or it connects again.
            present.abort()
        self._channels[hello.name] = channel
        self._admission.add(hello)
        return True

    def _join_late(self, hello: Hello, channel: Channel) -> bool:
        """Adds a task that was started again, if the run can use it."""
        name = hello.name
        problem = self._admission.why_not(hello)
        if problem is not None:
            logging.warning("A task could not join: %s", problem)
            channel.send(refuse=problem)
        elif name in self._options.expendable and not self._is_over:
            # Its new process has its port, so the old one is gone.
            if name in self._channels:
                self._channels[name].abort()
                self._lost(name, "it was started again")
            self._channels[name] = channel
            logging.warning("%s is back.", label(name, self._tasks))
            channel.send(start=self._members)
            return True
        elif self._options.is_elastic and name not in (self._members or ()):
            self._broadcast(preempt=f"{name} is back")
        if problem is None:
            channel.send(running=True)
        return False

    async def _listen(self, name: str, channel: Channel) -> None:
        """Handles the messages of a task until its connection ends."""
        while (message := await channel.receive()) is not None:
            if self._channels.get(name) is not channel:
                continue
            try:
                self._handle(name, message)
            except (LookupError, TypeError, ValueError):
                channel.abort("sent something other than messages")
        # Another connection of the same task may have replaced this one.
        if self._channels.get(name) is channel:
            self._lost(name, channel.how)

    def _handle(self, name: str, message: Mapping[str, Any]) -> None:
        if "leave" in message:
            self._left(name, message["leave"])
        elif "preempt" in message:
            self._broadcast(preempt=str(message["preempt"]))
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
        here[name] = dict(message["facts"])
        if here.keys() >= self._channels.keys():
            del self._barriers[number]
            # In the cluster's order: the others are compared with the first.
            found = {n: here[n] for n in self._tasks if n in here}
            self._broadcast(barrier=number, problem=difference(found))

    def _give_up_barrier(self, number: int, seconds: float) -> None:
        here = self._barriers.get(number)
        if here is not None:
            late = [
                label(n, self._tasks) for n in self._channels if n not in here
            ]
            self.end(f"{listed(late)} did not reach a barrier in {seconds:g} s")

    def _left(self, name: str, reason: str | None) -> None:
        self._channels.pop(name, None)
        text = reason or f"{label(name, self._tasks)} ended"
        self._go_on_without(name, text, well=reason is None)

    def _lost(self, name: str, how: str) -> None:
        del self._channels[name]
        text = f"lost {label(name, self._tasks)}"
        self._go_on_without(name, f"{text}: {how}" if how else text, lost=name)

    def _go_on_without(
        self, name: str, reason: str, *, well: bool = False, lost: str = ""
    ) -> None:
        """Continues without a task if it is not needed; else ends the run."""
        if self._members is None:
            self._admission.remove(name)
        elif name not in self._options.expendable:
            self.end(reason, well=well, lost=lost)
        elif not self._is_over:
            logging.warning("%s%s.", reason[0].upper(), reason[1:])
            own = self._channels.get(self._own.name)
            if own is not None:
                own.send(gone=name)

    def _broadcast(self, **message: Any) -> None:
        for channel in list(self._channels.values()):
            channel.send(**message)
