"""The processes of a cluster, from the first start to the last end."""

import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_DONE, EXIT_START_AGAIN
from trainer.launcher.judge import Failure, Judge
from trainer.launcher.member import Member
from trainer.launcher.supervisor import End

_POLL_SECONDS = 0.05
# When one lost its peer, the peer's own end is the reason to be told.
_SETTLE_SECONDS = 2.0
# A process that hangs in the kernel does not even heed SIGKILL.
_KILL_SECONDS = 10.0
# How long a task may save its state after SIGTERM, before SIGKILL.
END_SECONDS = 30.0
# How long a process may outlive a peer of its run.
LEFT_BEHIND_SECONDS = 30.0
# How long the others may go on after the chief has ended with 0. A server
# only waits for its chief's word, an evaluator looks at the last checkpoint.
LEAVE_SECONDS = {"server": 10.0, "worker": 60.0, "evaluator": 300.0}


class Signals(NamedTuple):
    """What was sent to this process; the caller's handlers add to it.

    Attributes:
        end: signals that ask it to end.
        pass_on: signals that are meant for the tasks.
    """

    end: list[int]
    pass_on: list[int]


class Group:
    """The tasks of a cluster that run here.

    Args:
        members: the tasks, the chief first.
        judge: decides what follows from the end of one.
        show: is handed what the chief writes, as it comes.
        signals: see `Signals`.
        leave_seconds: see `LEAVE_SECONDS`.
        left_behind_seconds: see `LEFT_BEHIND_SECONDS`.
    """

    def __init__(
        self,
        members: Sequence[Member],
        judge: Judge,
        *,
        show: Callable[[bytes], None],
        signals: Signals,
        leave_seconds: dict[str, float] | None = None,
        left_behind_seconds: float = LEFT_BEHIND_SECONDS,
    ) -> None:
        self._members = members
        self._judge = judge
        self._show = show
        self._signals = signals
        self._leave_seconds = leave_seconds or LEAVE_SECONDS
        self._left_behind_seconds = left_behind_seconds
        self._chief_ended: float | None = None

    @property
    def chief(self) -> Member:
        """The first task that takes part; its output is shown."""
        taking_part = (m for m in self._members if not m.left_out)
        return next(taking_part, self._members[0])

    def run(self) -> Failure | None:
        """Returns when the outcome is certain, or a signal asks for the end.

        Some may still run then.

        Returns:
            Who failed for good; `None` when all is well.
        """
        for member in self._members:
            member.due = time.monotonic()
        while not self._signals.end:
            for member, end in self._start_due() + self._poll():
                failure = self._follow_up(member, end)
                if failure is not None:
                    return self._settle(failure)
            late = [m for m in self._members if self._is_late(m)]
            for member in late:
                if not self._is_server(member):
                    return Failure(member)
            if len(late) == sum(map(_goes_on, self._members)):
                return None
            self._end_left_behind()
            time.sleep(_POLL_SECONDS)
        return None

    def end(self, seconds: float, *, number: int = signal.SIGTERM) -> None:
        """Ends what still runs: a signal, a while, then SIGKILL.

        Another signal to this process ends the waiting.

        Args:
            seconds: how long that while is at most.
            number: the signal.
        """
        self._signal(number)
        self._await_ends(seconds)
        self.kill()

    def kill(self) -> None:
        """Ends what still runs, at once."""
        self._signal(signal.SIGKILL)
        self._await_ends(_KILL_SECONDS)

    def _end_left_behind(self) -> None:
        """Kills who hears of nothing any more, such as a frozen process.

        A task whose peer has left its run should have ended itself soon
        after. Nobody would wait for it otherwise: the others cannot meet it.
        """
        if self._judge.is_elastic:
            return
        long_ago = time.monotonic() - self._left_behind_seconds
        left = [
            m.left_at
            for m in self._members
            if m.left_at is not None and _belongs(m) and not self._is_spare(m)
        ]
        for member in filter(_belongs, self._members):
            if member.is_running and any(
                # One that started shortly before has met nobody by then.
                member.started + self._left_behind_seconds < at < long_ago
                for at in left
            ):
                assert member.process is not None
                member.process.signal(signal.SIGKILL)

    def _is_spare(self, member: Member) -> bool:
        """Whether the others go on without it: it may leave alone."""
        return self._is_server(member) and member.task.job != "ps"

    def _signal(self, number: int) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.signal(number)

    def _await_ends(self, seconds: float) -> None:
        """Until none runs, time is up, or one more signal has come."""
        heard = len(self._signals.end)
        deadline = time.monotonic() + seconds
        while True:
            self._poll()
            if not any(m.is_running for m in self._members):
                return
            if len(self._signals.end) > heard or time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _start_due(self) -> list[tuple[Member, End]]:
        """Starts what is due; returns who could not be started."""
        now = time.monotonic()
        due = [m for m in self._members if m.due is not None and m.due <= now]
        if any(m.faults and _belongs(m) for m in due):
            # A peer that has ended well is needed once more to meet the one
            # that comes back. It finds nothing to do and ends again.
            due += [
                m
                for m in self._members
                if _belongs(m) and m.returncode == EXIT_DONE
            ]
        ends = [(m, m.start()) for m in due]
        return [(m, end) for m, end in ends if end is not None]

    def _poll(self) -> list[tuple[Member, End]]:
        """Passes on output and signals; returns who has just failed."""
        self._pass_on()
        now = time.monotonic()
        found = [(m, m.take_end(now)) for m in self._members]
        if self.chief.process is not None:
            output = self.chief.process.new_output()
            if output:
                self._show(output)
        if self._chief_ended is None and self.chief.returncode == EXIT_DONE:
            self._chief_ended = now
            for member in filter(_belongs, self._members):
                member.due = None
        ends = [(m, end) for m, end in found if end is not None]
        # The cause comes before those that lost a peer by it.
        ends.sort(key=lambda one: one[1].returncode == EXIT_START_AGAIN)
        return ends

    def _pass_on(self) -> None:
        while self._signals.pass_on:
            number = self._signals.pass_on.pop(0)
            for member in self._members:
                if member.process is not None:
                    member.process.pass_on(number)

    def _follow_up(self, member: Member, end: End) -> Failure | None:
        if self._chief_ended is None or not _belongs(member):
            return self._judge.judge(member, end)
        # The work is done and saved: nobody is needed any more.
        if self._is_server(member) or end.is_bad_luck:
            return None
        return Failure(member, end)

    def _is_server(self, member: Member) -> bool:
        """Whether it only serves a chief, and has no say in the outcome."""
        job = member.task.job
        return job == "ps" or (
            job == "worker" and self._members[0].task.job == "chief"
        )

    def _is_late(self, member: Member) -> bool:
        if self._chief_ended is None or not member.is_running:
            return False
        kind = "server" if self._is_server(member) else member.task.job
        since = time.monotonic() - self._chief_ended
        return since > self._leave_seconds[kind]

    def _settle(self, failure: Failure) -> Failure:
        """The one to blame: who lost a peer (75) is not, if another failed."""
        if failure.member.returncode != EXIT_START_AGAIN:
            return failure
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            for member, end in self._poll():
                if end.returncode != EXIT_START_AGAIN:
                    return Failure(member, end)
            if not any(m.is_running for m in self._members):
                break
            time.sleep(_POLL_SECONDS)
        return failure


def _belongs(member: Member) -> bool:
    """Whether the others cannot go on without it; an evaluator looks on."""
    return member.task.job != "evaluator"


def _goes_on(member: Member) -> bool:
    return member.is_running or member.due is not None
