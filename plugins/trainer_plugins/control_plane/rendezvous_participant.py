"""One task's part in a rendezvous: it leads, or waits with the leader.

The lowest task that is present leads. Each task connects to the lower tasks
that may lead, and joins the first one that does. Once it has joined, it no
longer leads others. A leader that finds a lower one joins it and sends its
members `moved`; they search again and find the lower one, too. So each task
has one leader at a time, and a leader's decision holds for all its members.
When a leader dies, its members notice, and search and lead again.
"""

import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging

from trainer import StartAgain, UserError
from trainer_plugins.control_plane.rendezvous_clients import LeaderSearch
from trainer_plugins.control_plane.rendezvous_errors import difference
from trainer_plugins.control_plane.rendezvous_leader import Leader
from trainer_plugins.control_plane.rendezvous_members import Members
from trainer_plugins.control_plane.rendezvous_messages import is_hello, is_task
from trainer_plugins.control_plane.rendezvous_server import (
    IncomingConnection,
    IncomingConnections,
)

_TICK_SECONDS = 1.0
# How often time-outs are checked.
_SELECT_SECONDS = 0.1
# Members wait a little longer than the leader, which knows best who is missing.
_DECISION_SECONDS = 1.0


class Outcome(NamedTuple):
    """The outcome of a successful rendezvous.

    Attributes:
        members: the names of all tasks that take part, in order.
        connection: to the running job that accepted this task, if one did.
    """

    members: list[str]
    connection: socket.socket | None = None


class Participant:
    """A task that takes part in a rendezvous.

    Args:
        listener: listens on this task's own port; it stays open.
        hello: this task's introduction, see `rendezvous_messages`.
        members: the tasks that have joined when this one leads.
        silence_seconds: a leader that is silent for this long is lost.
    """

    def __init__(
        self,
        listener: socket.socket,
        hello: Mapping[str, Any],
        members: Members,
        *,
        silence_seconds: float,
    ) -> None:
        tasks: dict[str, str] = hello["tasks"]
        rank = list(tasks).index(hello["name"])
        # Where all tasks are required, only the first one ever leads.
        candidates = rank if members.is_elastic else min(rank, 1)
        leaders = dict(list(tasks.items())[:candidates])
        self._hello = hello
        self._first = next(iter(tasks))
        self._may_lead = members.is_elastic or rank == 0
        self._members = members
        self._silence_seconds = silence_seconds
        self._leader: Leader | None = None
        self._outcome: Outcome | None = None
        self._next_tick = 0.0
        self._selector = selectors.DefaultSelector()
        self._incoming = IncomingConnections(
            listener, self._selector, expected=len(tasks)
        )
        self._search = LeaderSearch(leaders, hello)
        self._selector.register(
            self._search.wakeup, selectors.EVENT_READ, self._search
        )

    def run(self) -> Outcome:
        """Waits until it is decided which tasks take part.

        Raises:
            StartAgain: too many tasks are missing.
            UserError: the tasks do not fit together.
        """
        try:
            while self._outcome is None:
                self._decide()
                if self._outcome is None:
                    self._tick()
                    self._handle_events()
            return self._outcome
        finally:
            self._search.close()
            self._leave()
            self._incoming.close()
            self._selector.close()

    @property
    def _leads(self) -> bool:
        return self._may_lead and self._leader is None

    def _decide(self) -> None:
        """Decides as the leader, or checks how long to wait for one."""
        now = time.monotonic()
        if self._leads:
            runs = any(connection.runs for connection in self._incoming)
            decision = self._members.decide(run_goes_on=runs)
            if decision is not None:
                self._incoming.broadcast(decision)
                # Before the decision is handled, which may raise: the members
                # must still get to close first.
                self._incoming.close_last()
                self._handle_decision(decision)
        elif self._leader is None:
            if now >= self._members.deadline:
                text = self._members.missing([self._first])
                raise StartAgain(text + self._search.note(self._first))
        elif now >= self._members.deadline + _DECISION_SECONDS:
            raise StartAgain(self._members.missing(self._leader.waiting))
        elif self._leader.is_silent:
            self._leave()

    def _tick(self) -> None:
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + _TICK_SECONDS
            self._incoming.drop_unknown()
            if self._leads:
                self._incoming.broadcast({"waiting": self._members.absent})

    def _handle_events(self) -> None:
        for key, _ in self._selector.select(_SELECT_SECONDS):
            if self._outcome is not None:
                return
            if key.data is self._incoming:
                self._incoming.accept()
            elif key.data is self._search:
                self._join()
            elif key.data is self._leader:
                self._read_leader()
            # An earlier event of this round may have dropped the connection.
            elif (
                isinstance(key.data, IncomingConnection)
                and key.data in self._incoming
            ):
                self._read_incoming(key.data)

    def _join(self) -> None:
        """Joins the leader that was found, and redirects the members to it."""
        picked = self._search.take()
        if picked is None:
            return
        self._leader = Leader(*picked, silence_seconds=self._silence_seconds)
        self._selector.register(
            self._leader, selectors.EVENT_READ, self._leader
        )
        self._incoming.broadcast({"moved": True})
        for connection in self._incoming:
            # It is a member of the other leader from now on.
            connection.joined = None
        self._members.clear()

    def _leave(self) -> None:
        """Leaves the leader, and searches for one again."""
        if self._leader is not None:
            self._selector.unregister(self._leader)
            self._leader.close()
            self._leader = None
            self._members.clear()
            self._search.resume()

    def _read_leader(self) -> None:
        messages = self._leader.read() if self._leader else None
        if messages is None:
            self._leave()
        for message in messages or ():
            self._handle_decision(message)

    def _handle_decision(self, message: Mapping[str, Any]) -> None:
        """Ends the rendezvous if a leader's message is a decision."""
        if "missing" in message:
            raise StartAgain(str(message["missing"]))
        if "error" in message:
            raise UserError(str(message["error"]))
        members = message.get("go")
        if isinstance(members, list) and self._hello["name"] in members:
            self._outcome = Outcome(members)

    def _read_incoming(self, connection: IncomingConnection) -> None:
        messages = self._incoming.read(connection)
        for message in messages or ():
            if not self._answer(connection, message):
                messages = None
                break
        if messages is None:
            if connection.is_unknown:
                logging.info(
                    "An unknown program connected from %s.", connection.origin
                )
            if connection.joined:
                self._members.remove(connection.joined)
            # The run has ended, perhaps so that this task can take part. It has
            # to be restarted before its tasks can join.
            if connection.runs:
                self._members.expect_a_run()
            self._incoming.drop(connection)

    def _answer(
        self, connection: IncomingConnection, message: Mapping[str, Any]
    ) -> bool:
        """Answers one message; returns whether it is valid."""
        name = self._hello["name"]
        if is_hello(message.get("hello")):
            connection.hello = message["hello"]
            connection.send({"host": name, "leads": self._leads})
        elif "join" in message and connection.hello is not None:
            self._add_member(connection, connection.hello)
        elif self._is_own_run(message.get("knock")):
            connection.runs = True
            self._members.expect_a_run()
            connection.send({"waits": name})
        elif connection.runs and is_hello(message.get("admit")):
            self._enter(connection, message["admit"])
        else:
            return False
        return True

    def _add_member(
        self, connection: IncomingConnection, hello: Mapping[str, Any]
    ) -> None:
        if not self._leads:
            connection.send({"moved": True})
            return
        if self._members.is_again(hello):
            # Its old connection is broken, though this end may not have
            # noticed yet. Its loss must not remove the new one.
            for other in self._incoming:
                if other.joined == hello["name"]:
                    self._incoming.drop(other)
        counts = self._members.add(hello, connection.origin)
        # A second task of that name receives the decision, but is not a member.
        connection.joined = hello["name"] if counts else ""
        connection.send({"waiting": self._members.absent})

    def _is_own_run(self, knock: Any) -> bool:
        return is_task(knock) and knock["tasks"] == self._hello["tasks"]

    def _enter(
        self, connection: IncomingConnection, run: Mapping[str, Any]
    ) -> None:
        """Rejoins the running job if the facts are the same."""
        own = self._hello["name"]
        problem = difference({run["name"]: run, own: self._hello})
        if problem:
            connection.send({"error": problem})
            raise UserError(problem)
        self._incoming.release(connection)
        # Tasks rejoin only under parameter servers, where all of them take
        # part.
        self._outcome = Outcome(list(self._hello["tasks"]), connection.socket)
