"""The processes of a cluster, from the first start to the last end."""

import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.errors import EXIT_DONE, EXIT_START_AGAIN
from trainer.launch.clock import Clock
from trainer.launch.group_policy import Failure, Judge
from trainer.launch.policy import End
from trainer.launch.process import Process
from trainer.launch.roles import belongs, serves
from trainer.launch.stuck import late, left_behind, may_wait, stopped
from trainer.launch.task import Member
from trainer.launch.timeouts import Patience

_POLL_SECONDS = 0.05
# When one lost its peer, the peer's own end is the reason to be told.
_SETTLE_SECONDS = 2.0
# A process that hangs in the kernel does not even heed SIGKILL.
_KILL_SECONDS = 10.0


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
        patience: how long to wait for what.
        show: is handed what the chief writes, as it comes.
        say: is handed a sentence about each process that has to be ended.
        run_is_over: tells from the run's record whether it has ended well
            since the launcher began. The chief may run on another host.
        signals: see `Signals`.
        clock: tells the time and lets it pass.
    """

    def __init__(
        self,
        members: Sequence[Member],
        judge: Judge,
        *,
        patience: Patience,
        show: Callable[[bytes], None],
        say: Callable[[str], None],
        run_is_over: Callable[[], bool],
        signals: Signals,
        clock: Clock,
    ) -> None:
        self._members = members
        self._judge = judge
        self._patience = patience
        self._show = show
        self._say = say
        self._signals = signals
        self._clock = clock
        self._run_is_over = run_is_over
        self._over_at: float | None = None
        self._killed: list[Process] = []

    @property
    def chief(self) -> Member:
        """The first task that takes part; its output is shown."""
        taking_part = (m for m in self._members if not m.left_out)
        return next(taking_part, self._members[0])

    @property
    def is_over(self) -> bool:
        """Whether the run is done: nobody is needed any more."""
        return self._over_at is not None

    def run(self) -> Failure | None:
        """Returns when the outcome is certain, or a signal asks for the end.

        Some may still run then.

        Returns:
            Who failed for good; `None` when all is well.
        """
        for member in self._members:
            member.due = self._clock()
        while not self._signals.end:
            for member, end in self._start_due() + self._poll():
                failure = self._follow_up(member, end)
                if failure is not None:
                    return self._settle(failure)
            tardy = self._late()
            for member in tardy:
                if not may_wait(
                    member, self._members, elastic=self._judge.is_elastic
                ):
                    return Failure(member)
            if len(tardy) == sum(map(_goes_on, self._members)):
                return None
            self._end_stuck()
            self._clock.sleep(_POLL_SECONDS)
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

    def _end_stuck(self) -> None:
        """Kills those that nobody waits for and that cannot end themselves."""
        now, patience = self._clock(), self._patience
        for member in stopped(self._members, patience, now):
            seconds = f"{patience.stopped_seconds:g} s"
            self._kill(member, f"has been stopped (SIGSTOP) for {seconds}")
        before = now - patience.left_behind_seconds
        for member in self._left_behind(before):
            seconds = f"{patience.left_behind_seconds:g} s"
            self._kill(member, f"still is in a run that ended {seconds} ago")

    def _late(self) -> list[Member]:
        if self._over_at is None:
            return []
        since = self._clock() - self._over_at
        return late(self._members, self._patience, since)

    def _left_behind(self, before: float) -> list[Member]:
        # Elastic workers may leave while the run goes on.
        if self._judge.is_elastic:
            return []
        return left_behind(self._members, self._patience, before)

    def _kill(self, member: Member, why: str) -> None:
        process = member.process
        if process is not None and process not in self._killed:
            self._killed.append(process)
            self._say(f"{member.task.name} {why}: it is killed.")
            process.signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.signal(number)

    def _await_ends(self, seconds: float) -> None:
        """Until none runs, time is up, or one more signal has come."""
        heard = len(self._signals.end)
        deadline = self._clock() + seconds
        while True:
            self._poll()
            if not any(m.is_running for m in self._members):
                return
            if len(self._signals.end) > heard or self._clock() > deadline:
                return
            self._clock.sleep(_POLL_SECONDS)

    def _start_due(self) -> list[tuple[Member, End]]:
        """Starts what is due; returns who could not be started."""
        now = self._clock()
        due = [m for m in self._members if m.due is not None and m.due <= now]
        if self._left_behind(now):
            # It would only wait, in vain, for who is still in the old run.
            due = [m for m in due if not belongs(m)]
        again = (m for m in due if m.faults or m.process is not None)
        if any(map(belongs, again)):
            # A peer that has ended well is needed once more to meet the one
            # that comes back. It finds nothing to do and ends again.
            due += [
                m
                for m in self._members
                if belongs(m) and m.returncode == EXIT_DONE
            ]
        ends = [(m, m.start(now)) for m in due]
        return [(m, end) for m, end in ends if end is not None]

    def _poll(self) -> list[tuple[Member, End]]:
        """Passes on output and signals; returns who has just failed."""
        self._pass_on()
        now = self._clock()
        found = [(m, m.take_end(now)) for m in self._members]
        if self.chief.process is not None:
            output = self.chief.process.new_output()
            if output:
                self._show(output)
        if not self.is_over and self._has_ended_well():
            self._finish()
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

    def _has_ended_well(self) -> bool:
        if self.chief.returncode == EXIT_DONE:
            return True
        # No worker ends well before all that take part have; the first one
        # need not be among them.
        least = self._judge.min_workers
        done = [m for m in self._members if m.returncode == EXIT_DONE]
        return least is not None and sum(map(belongs, done)) >= least

    def _finish(self) -> None:
        """From now on the run is done."""
        self._over_at = self._clock()
        for member in filter(belongs, self._members):
            member.due = None

    def _follow_up(self, member: Member, end: End) -> Failure | None:
        if not belongs(member):
            return self._judge.judge(member, end)
        if not self.is_over and self._run_is_over():
            self._finish()
        if not self.is_over:
            return self._judge.judge(member, end)
        # The work is done and saved. An error is told all the same.
        is_error = not end.is_bad_luck and not end.is_crash
        if is_error and not serves(member, self._members):
            return Failure(member, end)
        return None

    def _settle(self, failure: Failure) -> Failure:
        """The one to blame: who lost a peer (75) is not, if another failed."""
        if failure.member.returncode != EXIT_START_AGAIN:
            return failure
        deadline = self._clock() + _SETTLE_SECONDS
        while self._clock() < deadline:
            for member, end in self._poll():
                if end.returncode != EXIT_START_AGAIN:
                    return Failure(member, end)
            if not any(m.is_running for m in self._members):
                break
            self._clock.sleep(_POLL_SECONDS)
        return failure


def _goes_on(member: Member) -> bool:
    return member.is_running or member.due is not None
