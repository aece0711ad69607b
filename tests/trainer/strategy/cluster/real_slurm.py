"""A real Slurm on this machine, for tests."""

import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Why no Slurm can be started here; `None` if it can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return f"no {', '.join(missing)}: install slurm-wlm and munge"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return None


class RealSlurm:
    """Starts munge and Slurm's daemons, and ends them.

    Args:
        folder: where keys, state and logs go. Short: it holds a socket.

    Attributes:
        environ: what `srun` needs.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.environ = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def __enter__(self):
        try:
            self._start_munge()
            self._start_slurm()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in ("slurmd", "slurmctld", "munged"):
            self._end(name)

    def srun(self, *arguments, environ=None, timeout=120):
        """Runs `srun` and waits for it."""
        return subprocess.run(
            ["srun", *arguments],
            env=self.environ | (environ or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def _start_munge(self):
        user = pwd.getpwnam("munge")
        home = self.folder / "munge"
        home.mkdir(mode=0o700)
        key = home / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        # The socket lies where every user may reach it.
        self.folder.chmod(0o755)
        for path in (home, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        for name in ("munged.pid", "munged.log", "munged.seed"):
            (home / name).touch()
            os.chown(home / name, user.pw_uid, user.pw_gid)
            (home / name).chmod(0o600)
        os.symlink(home / "munged.pid", self.folder / "munged.pid")
        sockets = self.folder / "munge.socket"
        self._run(
            "munged",
            "--force",
            f"--socket={sockets}",
            f"--key-file={key}",
            f"--pid-file={home / 'munged.pid'}",
            f"--log-file={home / 'munged.log'}",
            f"--seed-file={home / 'munged.seed'}",
        )

    def _start_slurm(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        ports = []
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                holder = stack.enter_context(socket.socket())
                holder.bind(("127.0.0.1", 0))
                ports.append(holder.getsockname()[1])
        conf = _CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=self.folder,
            controller=ports[0],
            node=ports[1],
            cpus=os.cpu_count(),
        )
        (self.folder / "slurm.conf").write_text(conf)
        self._run("slurmctld")
        self._run("slurmd")
        self._wait_until_idle()

    def _wait_until_idle(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%t"],
                env=self.environ,
                capture_output=True,
                text=True,
                timeout=20,
            )
            if state.stdout.strip() == "idle":
                return
            time.sleep(0.3)
        logs = [
            (self.folder / name).read_text(errors="replace")[-2000:]
            for name in ("slurmctld.log", "slurmd.log")
            if (self.folder / name).exists()
        ]
        raise AssertionError("\n".join([state.stdout, state.stderr, *logs]))

    def _run(self, *command):
        done = subprocess.run(
            command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def _end(self, name):
        """Ends a daemon by the number in its pid file."""
        try:
            pid = int((self.folder / f"{name}.pid").read_text())
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError):
            return
        for _ in range(100):
            if not os.path.exists(f"/proc/{pid}"):
                return
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
