"""A task's part in a meeting: it leads, or waits with the task that does.

The lowest task that is there leads. Each task calls those below it that may
lead, and joins the first that does; who has joined does not answer for others.
A leader that finds a lower one joins it and sends those it had on their way:
they call again and find the lower one, too. So each task is with one leader at
a time, and a leader's verdict holds for all that are with it. When a leader
dies, the others notice, and call and lead again.
"""

import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging

from trainer import StartAgain, UserError
from trainer_plugins.control_plane.rendezvous_clients import Callers
from trainer_plugins.control_plane.rendezvous_errors import difference
from trainer_plugins.control_plane.rendezvous_leader import Leader
from trainer_plugins.control_plane.rendezvous_members import Roster
from trainer_plugins.control_plane.rendezvous_messages import is_hello, is_task
from trainer_plugins.control_plane.rendezvous_server import Visitor, Visitors

_TICK_SECONDS = 1.0
# How often time-outs are looked at.
_LOOK_SECONDS = 0.1
# Who is with the leader lets it speak first: it knows best who is missing.
_VERDICT_SECONDS = 1.0


class Outcome(NamedTuple):
    """How a meeting ended well.

    Attributes:
        members: the names of all that take part, in order.
        line: the connection to the run that took this task in, if one did.
    """

    members: list[str]
    line: socket.socket | None = None


class Meeting:
    """One task's part in it.

    Args:
        listener: listens on this task's own port; it stays open.
        hello: what this task says of itself, see `rendezvous_messages`.
        roster: who is there when this task leads.
        silence_seconds: a leader that is silent for so long is gone.
    """

    def __init__(
        self,
        listener: socket.socket,
        hello: Mapping[str, Any],
        roster: Roster,
        *,
        silence_seconds: float,
    ) -> None:
        tasks: dict[str, str] = hello["tasks"]
        place = list(tasks).index(hello["name"])
        # All must be there: only the first leads.
        candidates = place if roster.is_elastic else min(place, 1)
        leaders = dict(list(tasks.items())[:candidates])
        self._hello = hello
        self._first = next(iter(tasks))
        self._may_lead = roster.is_elastic or place == 0
        self._roster = roster
        self._silence_seconds = silence_seconds
        self._up: Leader | None = None
        self._outcome: Outcome | None = None
        self._next_tick = 0.0
        self._selector = selectors.DefaultSelector()
        self._visitors = Visitors(listener, self._selector, expected=len(tasks))
        self._callers = Callers(leaders, hello)
        self._selector.register(
            self._callers.bell, selectors.EVENT_READ, self._callers
        )

    def run(self) -> Outcome:
        """Waits until it is known who takes part.

        Raises:
            StartAgain: too many tasks did not come in time.
            UserError: the tasks do not fit together.
        """
        try:
            while self._outcome is None:
                self._judge()
                if self._outcome is None:
                    self._tick()
                    self._handle_events()
            return self._outcome
        finally:
            self._callers.close()
            self._leave()
            self._visitors.close()
            self._selector.close()

    @property
    def _leads(self) -> bool:
        return self._may_lead and self._up is None

    def _judge(self) -> None:
        """Decides as the leader; else sees whether to go on waiting."""
        now = time.monotonic()
        if self._leads:
            runs = any(visitor.runs for visitor in self._visitors)
            verdict = self._roster.verdict(run_goes_on=runs)
            if verdict is not None:
                self._visitors.tell(verdict)
                self._visitors.see_off()
                self._obey(verdict)
        elif self._up is None:
            if now >= self._roster.deadline:
                text = self._roster.missing([self._first])
                raise StartAgain(text + self._callers.note(self._first))
        elif now >= self._roster.deadline + _VERDICT_SECONDS:
            raise StartAgain(self._roster.missing(self._up.waiting))
        elif self._up.is_silent:
            self._leave()

    def _tick(self) -> None:
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + _TICK_SECONDS
            self._visitors.send_strangers_away()
            if self._leads:
                self._visitors.tell({"waiting": self._roster.absent})

    def _handle_events(self) -> None:
        for key, _ in self._selector.select(_LOOK_SECONDS):
            if self._outcome is not None:
                return
            if key.data is self._visitors:
                self._visitors.welcome()
            elif key.data is self._callers:
                self._join()
            elif key.data is self._up:
                self._listen_up()
            elif isinstance(key.data, Visitor) and key.data in self._visitors:
                self._listen_to(key.data)

    def _join(self) -> None:
        """Goes over to the leader that was found, and sends all others on."""
        picked = self._callers.take()
        if picked is None:
            return
        self._up = Leader(*picked, silence_seconds=self._silence_seconds)
        self._selector.register(self._up, selectors.EVENT_READ, self._up)
        self._visitors.tell({"moved": True})
        for visitor in self._visitors:
            visitor.joined = None
        self._roster.clear()

    def _leave(self) -> None:
        """Has no leader any more."""
        if self._up is not None:
            self._selector.unregister(self._up)
            self._up.close()
            self._up = None
            self._roster.clear()
            self._callers.resume()

    def _listen_up(self) -> None:
        messages = self._up.read() if self._up else None
        if messages is None:
            self._leave()
        for message in messages or ():
            self._obey(message)

    def _obey(self, message: Mapping[str, Any]) -> None:
        """Ends the meeting if a leader's message is a verdict."""
        if "missing" in message:
            raise StartAgain(str(message["missing"]))
        if "error" in message:
            raise UserError(str(message["error"]))
        members = message.get("go")
        if isinstance(members, list) and self._hello["name"] in members:
            self._outcome = Outcome(members)

    def _listen_to(self, visitor: Visitor) -> None:
        messages = self._visitors.listen_to(visitor)
        for message in messages or ():
            if not self._answer(visitor, message):
                messages = None
                break
        if messages is None:
            if visitor.is_stranger:
                logging.info("A stranger called from %s.", visitor.origin)
            if visitor.joined:
                self._roster.remove(visitor.joined)
            if visitor.runs:
                self._roster.expect_a_run()
            self._visitors.drop(visitor)

    def _answer(self, visitor: Visitor, message: Mapping[str, Any]) -> bool:
        """Answers one message; whether it is one."""
        name = self._hello["name"]
        if is_hello(message.get("hello")):
            visitor.hello = message["hello"]
            visitor.send({"host": name, "leads": self._leads})
        elif "join" in message and visitor.hello is not None:
            self._take_in(visitor, visitor.hello)
        elif self._is_own_run(message.get("knock")):
            visitor.runs = True
            self._roster.expect_a_run()
            visitor.send({"waits": name})
        elif visitor.runs and is_hello(message.get("admit")):
            self._enter(visitor, message["admit"])
        else:
            return False
        return True

    def _take_in(self, visitor: Visitor, hello: Mapping[str, Any]) -> None:
        if not self._leads:
            visitor.send({"moved": True})
            return
        if self._roster.is_again(hello):
            # Its old connection ended unnoticed, or will.
            for other in self._visitors:
                if other.joined == hello["name"]:
                    self._visitors.drop(other)
        counts = self._roster.add(hello, visitor.origin)
        # Another one of that name hears the verdict, but may leave.
        visitor.joined = hello["name"] if counts else ""
        visitor.send({"waiting": self._roster.absent})

    def _is_own_run(self, knock: Any) -> bool:
        return is_task(knock) and knock["tasks"] == self._hello["tasks"]

    def _enter(self, visitor: Visitor, run: Mapping[str, Any]) -> None:
        """Takes part in the run that goes on, if it is alike."""
        own = self._hello["name"]
        problem = difference({run["name"]: run, own: self._hello})
        if problem:
            visitor.send({"error": problem})
            raise UserError(problem)
        self._visitors.release(visitor)
        self._outcome = Outcome(list(self._hello["tasks"]), visitor.connection)
