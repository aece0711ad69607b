"""Joins the coordinator, which runs in the first task and nowhere else."""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from absl import logging

from trainer import StartAgain, UserError
from trainer.plugin_api import split_address
from trainer_plugins.control_plane.addresses import (
    connectable,
    coordinator_port,
)
from trainer_plugins.control_plane.admission import Hello, is_proof, proof
from trainer_plugins.control_plane.channel import Channel, most_bytes
from trainer_plugins.control_plane.difference import missing
from trainer_plugins.control_plane.options import ANSWER_SECONDS, Options

_RETRY_SECONDS = 0.1


class Joining:
    """One task's way into a run; for the event loop's thread only.

    A task that is started again while the run continues without it waits until
    that run has ended for it.

    Args:
        name: this task's.
        tasks: the address of every task, the first one's first.
        facts: JSON values that must be equal everywhere, such as versions.
        options: see `Options`.

    Attributes:
        hello: this task's introduction.
    """

    def __init__(
        self,
        name: str,
        tasks: Mapping[str, str],
        facts: Mapping[str, Any],
        options: Options,
    ) -> None:
        # As they arrive at the others, so that the task's own facts compare
        # equal: JSON turns a tuple into a list. Types that it lacks become
        # text.
        facts = json.loads(json.dumps(dict(facts), default=str))
        cluster = {f"the address of {one}": tasks[one] for one in tasks}
        self.hello = Hello(name, uuid.uuid4().hex, {**facts, **cluster})
        self._tasks = tasks
        self._options = options
        self._port = coordinator_port(tasks)
        self._first, address = next(iter(tasks.items()))
        self._host = connectable(split_address(address)[0])
        self._note = ""
        self._runs_without = False

    async def run(self) -> tuple[Channel, list[str]]:
        """Returns the connection, and who takes part, when the run has started.

        Until it is connected, this task waits for the first one alone; then
        that one's coordinator says who is missing.

        Raises:
            StartAgain: too many tasks are missing.
            UserError: the tasks do not fit together.
        """
        start_seconds = self._options.start_seconds
        deadline = time.monotonic() + start_seconds
        while True:
            channel = await self._open()
            if channel is not None:
                members = await self._await_start(channel)
                if members is not None:
                    return channel, members
                if self._runs_without:
                    # The tasks of the run that has ended are started again.
                    self._runs_without = False
                    deadline = time.monotonic() + start_seconds
            if time.monotonic() >= deadline:
                text = missing([self._first], self._tasks, start_seconds)
                raise StartAgain(f"{text}{self._note}")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _open(self) -> Channel | None:
        """Connects to the coordinator, if it is there."""
        channel = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                channel = Channel(
                    *await asyncio.open_connection(
                        self._host,
                        self._port,
                        limit=most_bytes(len(self._tasks)),
                    ),
                    self._options.silence_seconds,
                )
                challenge = (await channel.receive() or {}).get("challenge")
                if isinstance(challenge, str):
                    channel.send(
                        join=self.hello.name,
                        id=self.hello.id,
                        facts=self.hello.facts,
                        proof=proof(f"task {challenge}"),
                    )
                    answer = (await channel.receive() or {}).get("proof")
                    if is_proof(answer, f"coordinator {self.hello.id}"):
                        return channel
            self._note = f" (another program answers at port {self._port})"
        except TimeoutError:
            self._note = f" (no answer at port {self._port})"
        # UnicodeError: a name that IDNA cannot encode.
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            self._note = f" (coordinator at port {self._port}: {reason})"
        if channel is not None:
            channel.abort()
        return None

    async def _await_start(self, channel: Channel) -> list[str] | None:
        """Returns who takes part; `None` if the connection ends before."""
        while (message := await channel.receive()) is not None:
            if "refuse" in message:
                raise UserError(str(message["refuse"]))
            if "missing" in message:
                raise StartAgain(str(message["missing"]))
            if "running" in message:
                self._runs_without = True
                logging.warning("A run continues without this task.")
            if "start" in message:
                return list(map(str, message["start"]))
        channel.abort()
        return None
