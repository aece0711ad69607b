"""Launches of simulated tasks: the real agent, without processes or waits.

For the programs of the tasks see `tests.trainer.launch.programs`.
"""

import contextlib
import heapq
import itertools
import math
import os
import pathlib
import signal
import types
from typing import NamedTuple
from unittest import mock

from trainer.errors import StartAgain
from trainer.launch.agent import Agent
from trainer.launch.main import summarize
from trainer.launch.policy import Limits
from trainer.launch.task import Task
from trainer.launch.task_spec import TaskSpec
from trainer.runtime.exit_report import VARIABLE, ExitReport


class Launched(NamedTuple):
    """The outcome of a launch, and its time on the simulation's clock."""

    code: int
    out: str
    err: str
    seconds: float


class Simulation:
    """A simulated clock, which starts at 0 and advances as the launcher sleeps.

    Args:
        log_dir: where the log files go.
        capture: returns what was written to standard output and error.

    Attributes:
        processes: all processes that were started, by task name.
        now: the current time.
        most_seconds: the longest that a launch may take.
    """

    def __init__(self, log_dir, capture):
        self.processes = {}
        self.now = 0.0
        self.most_seconds = 1000.0
        self._log_dir = log_dir
        self._capture = capture
        self._events = []
        self._numbers = itertools.count()
        self._programs = {}

    def launch(
        self,
        programs,
        *,
        run_is_over=lambda: False,
        start_process=None,
        **limits,
    ):
        """Launches a program for each task, such as `{"worker 0": ...}`.

        Args:
            programs: by the name of the task, the chief first.
            run_is_over: see `Agent`.
            start_process: see `Task`; simulated processes by default.
            **limits: fields of `Limits`; no restarts by default.
        """
        self._programs = programs
        tasks = []
        for name in programs:
            job, index = name.split()
            spec = TaskSpec(job, int(index), (name,))
            tasks.append(
                Task(
                    spec,
                    log_dir=str(self._log_dir),
                    start_process=start_process or self.start_process,
                )
            )
        agent = Agent(
            tasks,
            limits=Limits(**{"max_restarts": 0, **limits}),
            run_is_over=run_is_over,
            clock=types.SimpleNamespace(
                monotonic=lambda: self.now, sleep=self._sleep
            ),
        )
        code = agent.run()
        if code == 0:
            summarize(tasks)
        return Launched(code, *self._capture(), self.now)

    def start_process(self, task, log_path):
        """Stands in for `trainer.launch.process.Process`."""
        lives = self.processes.setdefault(task.name, [])
        lives.append(SimulatedProcess(self, task, log_path, len(lives) + 1))
        lives[-1].begin(self._programs[task.name])
        return lives[-1]

    def at(self, seconds, action, *given):
        """Calls a function at a time."""
        heapq.heappush(
            self._events, (seconds, next(self._numbers), action, given)
        )

    def signal_at(self, seconds, number=signal.SIGTERM):
        """Sends a signal to the launcher at a time."""
        self.at(seconds, signal.raise_signal, number)

    def starts(self, name):
        """When the processes of a task were started."""
        return [one.started for one in self.processes.get(name, [])]

    def lives(self, name):
        """How many processes a task has had."""
        return len(self.processes.get(name, []))

    def last(self, name):
        """The newest process of a task."""
        return self.processes[name][-1]

    def suspend_at(self, at, seconds):
        """Stops all tasks at a time, and soon the launcher, for a while.

        The tasks are continued a little after the launcher.
        """
        self.at(at, self._signal_all, signal.SIGSTOP)
        self.at(at + 0.3, self._jump, seconds)
        self.at(at + 0.3 + seconds + 0.3, self._signal_all, signal.SIGCONT)

    def _signal_all(self, number):
        for lives in self.processes.values():
            lives[-1].signal(number)

    def _jump(self, seconds):
        self.now += seconds

    def _sleep(self, seconds):
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            at, _, action, given = heapq.heappop(self._events)
            self.now = max(self.now, at)
            action(*given)
        self.now = max(self.now, until)
        if self.now > self.most_seconds:
            raise AssertionError(f"not over: {self._capture()}")


class SimulatedProcess:
    """One simulated process of a task.

    Attributes:
        name: the name of its task.
        life: the number of this process; the first is 1.
        handlers: what it does on a signal: a function that may return an
            exit code, or `signal.SIG_IGN`.
        signals: the signals it has received.
        started: when it was started.
        ended: when it ended; `None` while it runs.
    """

    # The real code writes and reads the exit report with this number.
    pid = os.getpid()

    def __init__(self, simulation, task, log_path, life):
        self.simulation = simulation
        self.name = task.name
        self.life = life
        self.returncode = None
        self.handlers = {}
        self.signals = []
        self.started = simulation.now
        self.ended = None
        self.stopped = False
        self._code = None
        self._task = task
        self._log_path = pathlib.Path(log_path)
        self._unseen = b""
        self._waits = False
        self._log_path.touch()

    def begin(self, program):
        self._steps = program(self)
        self._go_on()

    # What programs call.

    def say(self, text):
        """Writes a line to its output."""
        line = f"{text}\n".encode()
        self._unseen += line
        with self._log_path.open("ab") as log:
            log.write(line)

    def end_in(self, seconds, code):
        """Ends a little later, whatever its program does."""
        self.simulation.at(self.simulation.now + seconds, self.end, code)

    def fail(self, text, step):
        """The exit code of a failure, with a report of the step."""
        return self._report(1, ValueError(text), step)

    def leave(self, step, why="no reason"):
        """The exit code that requests a restart, with a report of the step."""
        return self._report(75, StartAgain(why), step)

    def begin_to_train(self, step=0):
        """Says in the report that there may be something to save."""
        self._report(None, None, step)

    def _report(self, code, error, step):
        report = ExitReport()
        with mock.patch.dict(os.environ, self._task.environ):
            assert VARIABLE in os.environ
            report.begin(types.SimpleNamespace(step=step))
            if code is not None:
                report.write(code, error)
        return code

    # What the launcher calls.

    def poll(self):
        self.returncode = self._code
        return self.returncode

    def is_stopped(self):
        return self.stopped and self._code is None

    def signal(self, number):
        if self._code is not None:
            return
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.end(-number)
        elif number in (signal.SIGSTOP, signal.SIGCONT):
            self.stopped = number == signal.SIGSTOP
            if self._waits and not self.stopped:
                self._go_on()
        elif not self.stopped:
            handler = self.handlers.get(number)
            if handler is None:
                self.end(-number)
            elif handler is not signal.SIG_IGN:
                self.end(handler())

    def forward(self, number):
        if number in self.handlers:
            self.signal(number)

    def new_output(self):
        output, self._unseen = self._unseen, b""
        return output

    def _go_on(self):
        """Runs the program until it lets time pass."""
        self._waits = self.stopped
        if self._code is not None or self.stopped:
            return
        try:
            seconds = next(self._steps)
        except StopIteration as end:
            self.end(end.value or 0)
            return
        if self._code is None and seconds != math.inf:
            now = self.simulation.now
            self.simulation.at(now + seconds, self._go_on)

    def end(self, code):
        """Ends now, unless there is no code."""
        if code is not None and self._code is None:
            self._code = code
            self.ended = self.simulation.now
            with contextlib.suppress(ValueError):
                self._steps.close()
