"""Starts `python -m trainer` and its launcher; signals and finds processes."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIN_FILE = ROOT / "tests" / "faults" / "faults.gin"
# Much more than anything here takes: only a run that hangs gets there.
SECONDS = 240.0


def wait_for(happened, what, *, seconds=SECONDS):
    """Waits until something is so, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, f"waited for {_text(what)}"
        time.sleep(0.02)
    return found


def _text(what):
    return what() if callable(what) else what


class Process:
    """A process with a log file.

    Args:
        command: what follows the interpreter's name.
        log: a path; the process adds to it.
        environ: more environment variables.
        folder: the working directory.
    """

    def __init__(self, command, *, log, environ, folder=ROOT):
        self.log_path = log
        self._begin = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as file:
            self._popen = subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.pid = self._popen.pid
        self.start = time.monotonic()

    @property
    def log(self):
        """What it has said, its spaces and line ends made one space."""
        return " ".join(self.lines)

    @property
    def lines(self):
        text = self.log_path.read_bytes()[self._begin :].decode()
        return [" ".join(line.split()) for line in text.splitlines()]

    def sentence(self, *words):
        """The last line of its log that has all these words in it."""
        for line in reversed(self.lines):
            if all(word in line for word in words):
                return line
        raise AssertionError(f"{words} not in\n" + "\n".join(self.lines[-30:]))

    def is_over(self):
        return self._popen.poll() is not None

    def signal(self, number):
        self._popen.send_signal(number)

    def wait_for(self, happened, what, *, seconds=SECONDS):
        """Waits until something is so; the process must not end before."""

        def is_so():
            found = happened()
            assert found or not self.is_over(), f"{what}: {self.log[-3000:]}"
            return found

        return wait_for(
            is_so, lambda: f"{what}: {self.log[-3000:]}", seconds=seconds
        )

    def wait_for_log(self, pattern, *, seconds=SECONDS):
        """Waits until it has said something; it may have ended by then."""
        return wait_for(
            lambda: re.search(pattern, self.log),
            lambda: f"{pattern!r} in {self.log[-3000:]}",
            seconds=seconds,
        )

    def end(self, seconds=SECONDS):
        """Waits for its exit code, negative if a signal ended it."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"It hangs. {self.log[-3000:]}") from None

    def must_end(self, *codes, seconds=SECONDS):
        code = self.end(seconds)
        assert code in codes, f"exit code {code}\n" + "\n".join(
            self.lines[-60:]
        )
        return self


class Runs:
    """The runs of a test, in a folder of their own.

    Args:
        folder: an empty folder.
        gin_file: the experiment; `None` if flags name it.
    """

    def __init__(self, folder, gin_file=GIN_FILE):
        self.gin_file = gin_file
        self.folder = folder
        self.model_dir = folder / "run"
        self.plan_dir = folder / "faults"
        self.plan_dir.mkdir()
        self.flags = ()
        self.environ = {}
        self.ports = {}

    def plan(self, *lines):
        """What happens to processes, in place of what was planned before."""
        for path in self.plan_dir.iterdir():
            if not path.name.startswith("phase_"):
                path.unlink()
        (self.plan_dir / "plan").write_text("\n".join(lines))

    def is_held(self, task="single"):
        """Whether a process waits where it was planned to."""
        lines = (self.plan_dir / "plan").read_text().splitlines()
        return any(lines[n].startswith(f"{task} ") for n in self._held())

    def release(self):
        """Lets those go on that wait now."""
        for number in self._held():
            (self.plan_dir / f"release_{number}").touch()

    def _held(self):
        """The lines of the plan at which a process waits."""
        found = {
            int(path.name.removeprefix("held_"))
            for path in self.plan_dir.glob("held_*")
        }
        return [
            n for n in found if not (self.plan_dir / f"release_{n}").exists()
        ]

    def phase(self, task):
        """What a task is doing, and the step."""
        try:
            text = (self.plan_dir / f"phase_{task}").read_text()
        except FileNotFoundError:
            return "start", 0
        point, step = text.split()
        return point, int(step)

    def train(self, *flags, environ=None, folder=ROOT, log="log"):
        """Starts `python -m trainer`."""
        return self._start(
            ["trainer", *self._flags(flags)], environ, folder, log
        )

    def launch(self, *own, flags=()):
        """Starts `python -m trainer.launch`."""
        command = ["trainer.launch", *own, "--", *self._flags(flags)]
        return self._start(command, {}, ROOT, "launcher")

    def tasks(self, *flags, start=None, environ=None, folder=ROOT, **counts):
        """Starts the tasks of a cluster.

        Args:
            *flags: of all tasks.
            start: the names of those to start; all of them if `None`.
            environ: by a task's name, more environment variables.
            folder: the working directory.
            **counts: how many tasks of each kind there are.

        Returns:
            The processes by name, such as `worker_1`.
        """
        key = tuple(sorted(counts.items()))
        cluster = self.ports.setdefault(key, _cluster(counts))
        names = [
            f"{job}_{index}"
            for job, count in counts.items()
            for index in range(count)
        ]
        return {
            name: self.train(
                *flags,
                environ=_task(cluster, name) | (environ or {}).get(name, {}),
                folder=folder,
                log=name,
            )
            for name in (names if start is None else start)
        }

    def _flags(self, flags):
        return [
            *([f"--gin_file={self.gin_file}"] if self.gin_file else []),
            f"--model_dir={self.model_dir}",
            *self.flags,
            *flags,
        ]

    def _start(self, command, environ, folder, log):
        return Process(
            ["-m", *command],
            log=self.folder / log,
            environ={
                "FAULTS_DIR": str(self.plan_dir),
                **self.environ,
                **(environ or {}),
            },
            folder=folder,
        )

    def task_log(self, name):
        """What a launcher's task has said."""
        path = self.model_dir / "logs" / f"{name}.log"
        return " ".join(path.read_text().split()) if path.exists() else ""

    def find(self, name):
        """The number of a launcher's task; `None` if there is none now."""
        path = self.model_dir / "logs" / f"{name}.log"
        found = [pid for pid, written in _writers() if written == path]
        # What the task has started writes there too.
        first = [pid for pid in found if _parent(pid) not in found]
        return first[0] if first else None

    def find_new(self, name, *old):
        """Waits for a launcher's task with another number than these."""
        return wait_for(
            lambda: (pid := self.find(name)) not in (None, *old) and pid,
            f"{name} to start",
        )

    def end(self):
        """Kills whatever is left, orphans too."""
        deadline = time.monotonic() + 20
        while left := [
            pid for pid, path in _writers() if self.folder in path.parents
        ]:
            assert time.monotonic() < deadline, left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def is_gone(pid):
    """Whether a process has ended; nobody may have reaped it yet."""
    return _stat(pid)[0] in ("", "Z")


def is_stopped(pid):
    return _stat(pid)[0] == "T"


def children(pid):
    """The numbers of the processes that one has started."""
    numbers = [int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*")]
    return [n for n in numbers if _parent(n) == pid and not is_gone(n)]


def free_ports(count):
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _cluster(counts):
    ports = iter(free_ports(sum(counts.values())))
    return {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
        for job, count in counts.items()
        if job != "evaluator"
    }


def _task(cluster, name):
    job, index = name.split("_")
    task = {"type": job, "index": int(index)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _writers():
    """Running processes, each with the file of its standard output."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            written = pathlib.Path(os.readlink(entry / "fd" / "1"))
            if not is_gone(int(entry.name)):
                yield int(entry.name), written


def _parent(pid):
    return int(_stat(pid)[1])


def _stat(pid):
    """State and parent of a process; nothing if there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", "0"
    return text.rpartition(")")[2].split()[:2]
