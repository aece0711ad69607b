"""Finds the coordinator of a cluster, and joins it.

Where all tasks are required, it is in the first task. In an elastic cluster
that one may be absent, and the first of those present coordinates: one task
on each host listens, all tasks search the hosts in the cluster's order, and one
that finds a coordinator on an earlier host leaves its own for that one. A
task that finds a run going on without it joins that instead, and waits until
the run has ended for it.
"""

import asyncio
import dataclasses
import errno
import itertools
import socket
import time
from collections.abc import Sequence
from typing import Any

from trainer import StartAgain, UserError
from trainer.plugin_api import split_address
from trainer_plugins.control_plane import timeouts
from trainer_plugins.control_plane.addresses import (
    COORDINATOR_PORT,
    claim,
    coordinator_port,
    server_socket,
)
from trainer_plugins.control_plane.background import beats
from trainer_plugins.control_plane.coordinator import Coordinator
from trainer_plugins.control_plane.difference import missing
from trainer_plugins.control_plane.hello import Hello, Secret
from trainer_plugins.control_plane.options import Options
from trainer_plugins.control_plane.stream import Stream, most_bytes

# A task waits a little longer than the coordinator, which knows best who is
# missing.
_DECISION_SECONDS = 1.0
# Which of its searches a task makes on all hosts.
_EVERYWHERE = 5


@dataclasses.dataclass(frozen=True)
class Joined:
    """A run that has started.

    Attributes:
        stream: the connection to the coordinator.
        name: the task in which the coordinator runs.
        members: the tasks that take part.
        coordinator: set if it runs in this process.
    """

    stream: Stream
    name: str
    members: Sequence[str]
    coordinator: Coordinator | None


class Joining:
    """One task's way into a run; for the event loop's thread only.

    Args:
        hello: this task's introduction.
        own_host: the host that this task is on.
        options: see `Options`.

    Attributes:
        coordinator: set while this process is one.

    Raises:
        UserError: the coordinator's port cannot be used.
    """

    def __init__(
        self, hello: Hello, *, own_host: str, options: Options
    ) -> None:
        self._hello = hello
        self._own_host = own_host
        self._options = options
        self._secret = Secret()
        self._port = coordinator_port(hello.tasks)
        hosts = [split_address(address)[0] for address in hello.tasks.values()]
        # Those on which a coordinator may be, in the cluster's order.
        self._hosts = list(dict.fromkeys(hosts))
        self._deadline = time.monotonic() + options.start_seconds
        self._listener: socket.socket | None = None
        if not options.is_elastic and hello.name == next(iter(hello.tasks)):
            self._listener = claim(
                self._port,
                lambda: server_socket(own_host, self._port),
                owner=hello.name,
                advice=f"set {COORDINATOR_PORT} to a free one",
            )
        # Until a coordinator says more, this task waits for the first one.
        self._absent = [next(iter(hello.tasks))]
        self._note = ""
        self._expected: Sequence[str] = ()
        self.coordinator: Coordinator | None = None

    async def run(self) -> Joined:
        """Returns when the run has started.

        Raises:
            StartAgain: too many tasks are missing.
            UserError: the tasks do not fit together.
        """
        while True:
            await self._serve()
            host = await self._choose(self._hosts)
            if host is not None:
                joined = await self._join(host)
                if joined is not None:
                    return joined
            if time.monotonic() >= self._deadline:
                raise StartAgain(f"{self._missing()}{self._note}")
            await asyncio.sleep(timeouts.CONNECT_RETRY_SECONDS)

    async def _serve(self) -> None:
        """Becomes a coordinator where this task may be one."""
        if self.coordinator is not None:
            return
        listener, self._listener = self._listener, None
        if self._options.is_elastic:
            try:
                listener = server_socket(self._own_host, self._port)
            except OSError as error:
                # Another task of this machine may be the one that coordinates.
                if error.errno != errno.EADDRINUSE:
                    raise UserError(
                        f"{self._hello.name} cannot listen on port "
                        f"{self._port}: {error.strerror}. Set "
                        f"{COORDINATOR_PORT} to another one."
                    ) from None
        if listener is not None:
            self.coordinator = Coordinator(
                self._hello, self._secret, self._options
            )
            await self.coordinator.serve(listener)

    async def _choose(self, hosts: Sequence[str]) -> str | None:
        """Returns the host whose coordinator to join, if there is one."""
        if not self._options.is_elastic:
            return self._hosts[0]
        answers = await asyncio.gather(*map(self._ask, hosts))
        found = dict(zip(hosts, answers, strict=True))
        runs = [h for h, a in found.items() if a and a["running"] is not None]
        return next(iter([*runs, *(h for h, a in found.items() if a)]), None)

    async def _ask(self, host: str) -> dict[str, Any] | None:
        """Returns the answer of a host's coordinator, if there is one."""
        opened = await self._open(host, joins=False)
        if opened is None:
            return None
        stream, answer = opened
        stream.abort()
        return answer

    async def _open(
        self, host: str, *, joins: bool
    ) -> tuple[Stream, dict[str, Any]] | None:
        """Connects to a coordinator; returns its answer, too."""
        stream = None
        try:
            async with asyncio.timeout(timeouts.ANSWER_SECONDS):
                stream = Stream(
                    *await asyncio.open_connection(
                        # It may resolve to ::1 first.
                        "127.0.0.1" if host == "localhost" else host,
                        self._port,
                        limit=most_bytes(len(self._hello.tasks)),
                    )
                )
                challenge = (await stream.receive() or {}).get("challenge")
                if isinstance(challenge, str):
                    hello = dataclasses.replace(
                        self._hello, joins=joins, expected=self._expected
                    )
                    stream.send(**hello.message(self._secret, challenge))
                    answer = await stream.receive() or {}
                    proof = answer.get("proof")
                    expected = f"coordinator {self._hello.id}"
                    if self._secret.is_proof(proof, expected):
                        return stream, answer
            self._note = f" (another program answers at port {self._port})"
        except TimeoutError:
            self._note = f" (no answer at port {self._port})"
        # UnicodeError: a name that IDNA cannot encode.
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            self._note = f" (coordinator at port {self._port}: {reason})"
        if stream is not None:
            stream.abort()
        return None

    async def _join(self, host: str) -> Joined | None:
        """Takes part with a coordinator; `None` if that has ended."""
        opened = await self._open(host, joins=True)
        if opened is None:
            return None
        stream, answer = opened
        name = str(answer["coordinator"])
        # Not by its host's name: a machine may have several.
        if self.coordinator is not None and name != self._hello.name:
            await self.coordinator.close(f"another coordinator is in {name}")
            self.coordinator = None
        background = [asyncio.create_task(self._beat(stream))]
        if self._options.is_elastic:
            search = self._leave_for_better(stream, host)
            background.append(asyncio.create_task(search))
        limit = max(self._deadline - time.monotonic(), 0.0) + _DECISION_SECONDS
        members = None
        try:
            async with asyncio.timeout(limit):
                members = await self._await_start(stream)
        except TimeoutError:
            runs = answer["running"] is not None
            note = "; a run goes on without this task" if runs else ""
            raise StartAgain(f"{self._missing()}{note}") from None
        finally:
            for work in background:
                work.cancel()
            if members is None:
                stream.abort()
        if members is None:
            # What it has said of the others may no longer be true.
            self._absent = [name]
            if answer["running"] is not None:
                self._expect(answer["running"])
            return None
        return Joined(stream, name, members, self.coordinator)

    async def _await_start(self, stream: Stream) -> list[str] | None:
        """Returns who takes part; `None` if the connection ends before."""
        while (message := await stream.receive()) is not None:
            if "refuse" in message:
                raise UserError(str(message["refuse"]))
            if "missing" in message:
                raise StartAgain(str(message["missing"]))
            if "waiting" in message:
                self._absent = list(map(str, message["waiting"]))
            if "start" in message:
                return list(map(str, message["start"]))
        return None

    def _expect(self, members: Sequence[str]) -> None:
        """Gives the members of a run that has just ended time to return."""
        self._expected = members
        until = time.monotonic() + timeouts.RESTART_SECONDS
        self._deadline = max(self._deadline, until)

    async def _beat(self, stream: Stream) -> None:
        async for elapsed in beats():
            stream.beat(elapsed, self._options.silence_seconds)

    async def _leave_for_better(self, stream: Stream, host: str) -> None:
        """Ends a connection once a search finds a better coordinator."""
        earlier = self._hosts[: self._hosts.index(host)]
        for number in itertools.count(1):
            await asyncio.sleep(timeouts.SEARCH_SECONDS)
            # A later host may only have a run, which is searched less often.
            everywhere = number % _EVERYWHERE == 0
            best = await self._choose(self._hosts if everywhere else earlier)
            if best is not None and best != host:
                stream.abort()

    def _missing(self) -> str:
        return missing(
            self._absent, self._hello.tasks, self._options.start_seconds
        )
