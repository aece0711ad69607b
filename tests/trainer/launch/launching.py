"""Real launches of Python programs, for tests."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

DRIVER = pathlib.Path(__file__).with_name("launch_driver.py")
# Each process of a task knows how many there were before.
LIFE = """\
import os, signal, sys, time
path = os.environ["TRAINER_EXIT_REPORT"] + ".lives"
with open(path, "a") as file:
    file.write("x")
life = os.path.getsize(path)
print(f"life={life} pid={os.getpid()} ", flush=True)
def train(step):
    import types
    from trainer.runtime.process_exit import ExitReport
    report = ExitReport()
    report.begin(types.SimpleNamespace(step=step))
    print("trains", flush=True)
    return report
def fail(text, step):
    train(step).write(1, ValueError(text))
    sys.exit(1)
"""
# Stays until the file is there.
AWAIT = """
while not os.path.exists(os.path.dirname(path) + "/end"):
    time.sleep(0.02)
"""


class Launch:
    def __init__(self, folder, *tasks, **limits):
        self.logs = folder / "logs"
        given = {"tasks": tasks, "log_dir": str(self.logs), "limits": limits}
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self):
        """Exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=60)
        self.seconds = time.monotonic() - self.start
        return self.process.returncode, out, err

    def log(self, name):
        with contextlib.suppress(FileNotFoundError):
            return (self.logs / f"{name}.log").read_text()
        return ""

    def wait_for(self, name, text):
        deadline = time.monotonic() + 30
        while text not in self.log(name):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.02)


def pid_of(text):
    return int(text.split("pid=")[1].split()[0])


def is_gone(pid, seconds=5):
    """Whether a process ends; an unreaped zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def lives(one, name):
    return one.log(name).count("life=")


def finish(one):
    (one.logs / "end").touch()
    return one.result()
