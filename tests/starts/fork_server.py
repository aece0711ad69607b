"""Imports TensorFlow once, and forks a process for each request.

    python fork_server.py FD

`tests.starts.client` starts it, with a socket. A request is the length of a
JSON text, the text, and the file descriptors that the new process keeps; the
answer is its process number. A child that starts Python forks by itself.

TensorFlow must only be imported here: a runtime with threads does not survive
a fork.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import gc
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings

# The environment variable by which a process asks for a server of its own,
# and learns of the file descriptor to reach it.
WANTS_A_SERVER = "TESTS_FORK_SERVER"
_plain_start = subprocess._fork_exec
# By name, or by how a name begins: read by what is imported here.
_READ_AT_IMPORT = ("HOME", "KERAS_", "LANG", "LC_", "LD_", "OMP_", "TF_")
_READ_LATER = (
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "TF_CONFIG",
    "TF_FORCE_GPU_ALLOW_GROWTH",
)
# What the command line sets is what is so anyway.
_DEFAULTS = {("KERAS_BACKEND", "tensorflow")}
_MANY_FDS = 64
_HIGH_FD = 512


@dataclasses.dataclass
class Start:
    """A start of Python, as `subprocess` asks for it.

    Attributes:
        arguments: those after the interpreter's name.
        environ: the whole environment.
        folder: the working directory.
        new_session: whether it leads a session of its own.
        group: the process group to join, 0 for a new one, -1 for the parent's.
        fds: the numbers under which it keeps file descriptors.
    """

    arguments: list[str]
    environ: dict[str, str]
    folder: str
    new_session: bool
    group: int
    fds: list[int]

    @classmethod
    def of(cls, given: tuple, imported_with: dict[str, str]):
        """Reads what `subprocess` passes on to start a process.

        Args:
            given: the arguments of `subprocess._fork_exec`, by position.
            imported_with: what `read_at_import` gave in the server.

        Returns:
            The start and its present file descriptors, or `None` where only
            a plain start is the same.
        """
        command, executables, _, keep, folder, environ = given[:6]
        stdio, errpipe = (given[6], given[9], given[11]), given[13]
        new_session, group, *user, umask = given[15:21]
        command = [os.fsdecode(part) for part in command]
        if os.fsdecode(executables[0]) != sys.executable:
            return None
        if umask != -1 or any(one not in (None, -1) for one in user):
            return None
        if not _runs_code(command[1:]):
            return None
        if environ is None:
            named = dict(os.environ)
        else:
            pairs = [os.fsdecode(one).partition("=") for one in environ]
            named = {name: value for name, _, value in pairs}
        if read_at_import(named) != imported_with:
            return None
        folder = os.getcwd() if folder is None else os.path.abspath(folder)
        if not os.path.isdir(folder):
            return None
        kept = [fd for fd in keep if fd != errpipe]
        now = [one if one >= 0 else i for i, one in enumerate(stdio)] + kept
        start = cls(
            command[1:],
            named,
            os.fsdecode(folder),
            bool(new_session),
            group,
            [0, 1, 2, *kept],
        )
        return start, now


def read_at_import(environ: dict[str, str]) -> dict[str, str]:
    """The variables that are read before a request could set them."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("PYTHON", *_READ_AT_IMPORT))
        and name not in _READ_LATER
        and (name, value) not in _DEFAULTS
    }


def _runs_code(arguments: list[str]) -> bool:
    if arguments[:1] == ["-u"]:
        arguments = arguments[1:]
    if not arguments:
        return False
    first = arguments[0]
    return first.endswith(".py") or (
        first in ("-c", "-m") and len(arguments) > 1
    )


def send(requests: socket.socket, start: Start, fds: list[int]) -> int:
    """Asks a server for a process; returns its number."""
    text = json.dumps(dataclasses.asdict(start)).encode()
    socket.send_fds(requests, [struct.pack("!I", len(text))], fds)
    requests.sendall(text)
    answer = requests.recv(16)
    if not answer:
        raise OSError("The fork server has ended.")
    return int(answer)


def _receive(requests: socket.socket):
    head, fds, _, _ = socket.recv_fds(requests, 4, _MANY_FDS)
    if not head:
        return None
    missing = struct.unpack("!I", head)[0]
    text = b""
    while len(text) < missing:
        text += requests.recv(missing - len(text))
    return Start(**json.loads(text)), fds


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns where there are threads: those of NumPy's linear
        # algebra, which makes new ones in a child.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _fork_orphan(start: Start, fds: list[int]) -> int:
    """Forks a process whose parent is the nearest that adopts orphans."""
    reader, writer = os.pipe()
    between = _fork()
    if between == 0:
        parent = os.getpid()
        number = _fork()
        if number == 0:
            while os.getppid() == parent:
                time.sleep(0.0005)
            _become(start, fds)
        os.write(writer, b"%d" % number)
        os._exit(0)
    os.close(writer)
    # Once this one is gone, the new process has its new parent.
    os.waitpid(between, 0)
    with open(reader) as pipe:
        return int(pipe.read())


def _fork_child(*given) -> int:
    """Takes the place of `subprocess._fork_exec` in forked processes."""
    from tensorflow.python.eager import context

    found = None
    if context._context is None or not context._context._initialized:
        found = Start.of(given, _imported_with)
    if found is None:
        return _plain_start(*given)
    number = _fork()
    if number == 0:
        _become(*found, prepare=given[21])
    return number


def _become(start: Start, fds: list[int], prepare=None) -> None:
    """Makes this process what a plain start would have made of it."""
    code = 1
    try:
        _forget_handlers()
        os.chdir(start.folder)
        if start.new_session:
            os.setsid()
        if start.group >= 0:
            os.setpgid(0, start.group)
        if prepare is not None:
            prepare()
        _keep(start.fds, fds)
        os.environ.clear()
        os.environ.update(start.environ)
        if WANTS_A_SERVER in os.environ:
            os.environ[WANTS_A_SERVER] = str(_fork_server())
        arguments = start.arguments
        is_unbuffered = arguments[0] == "-u"
        _forget_the_server(is_unbuffered)
        code = _run(arguments[is_unbuffered:])
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _forget_handlers() -> None:
    """Leaves signals as `exec` does: what was ignored is, nothing else."""
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep(numbers: list[int], fds: list[int]) -> None:
    """Keeps file descriptors under new numbers, and no other ones."""
    # None may be overwritten before it has its new number.
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for fd in fds]
    os.closerange(0, _HIGH_FD)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number, inheritable=True)
    os.closerange(_HIGH_FD, _HIGH_FD + 2 * _MANY_FDS)


def _fork_server() -> int:
    """Forks a server for this process; returns what to reach it by."""
    requests, other = socket.socketpair()
    if _fork() == 0:
        requests.close()
        for fd in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        del os.environ[WANTS_A_SERVER]
        _serve(other)
        os._exit(0)
    other.close()
    return requests.detach()


def _forget_the_server(is_unbuffered: bool) -> None:
    import numpy as np

    np.random.seed()
    tempfile.tempdir = None
    time.tzset()
    unbuffered = is_unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    out = _text_file(1, unbuffered, line_buffering=os.isatty(1))
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    error = _text_file(2, unbuffered, line_buffering=True)
    sys.stderr = sys.__stderr__ = error  # type: ignore[misc]
    subprocess._fork_exec = _fork_child


def _text_file(fd: int, unbuffered: bool, *, line_buffering: bool):
    """A standard stream, as the interpreter makes it."""
    return io.TextIOWrapper(
        open(fd, "wb", buffering=0 if unbuffered else -1, closefd=False),
        encoding=sys.stdout.encoding,
        errors="backslashreplace" if fd == 2 else sys.stdout.errors,
        line_buffering=line_buffering,
        write_through=unbuffered,
    )


def _run(arguments: list[str]) -> int:
    """Runs `-m MODULE`, `-c CODE` or a file; returns the exit code."""
    what, *rest = arguments
    sys.orig_argv = [sys.executable, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    first = {"-m": os.getcwd(), "-c": ""}.get(what)
    if first is None:
        first = os.path.dirname(os.path.realpath(what))
    path = os.environ.get("PYTHONPATH")
    path = path.split(os.pathsep) if path else []
    sys.path[:] = [first, *map(os.path.abspath, path), *_site_path]
    try:
        if what == "-m":
            sys.argv = rest
            runpy._run_module_as_main(rest[0])
        elif what == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [what, *rest]
            main.__file__ = what
            with io.open_code(what) as file:
                text = file.read()
            exec(compile(text, what, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt as error:
        _show(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    """Prints a traceback without the frame of this file."""
    sys.excepthook(type(error), error, error.__traceback__.tb_next)


def _end(code: int) -> None:
    """Ends as the interpreter does, but for taking itself down."""
    with contextlib.suppress(BaseException):
        threading._shutdown()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Serves until the other end of the socket is closed."""
    global _imported_with, _site_path
    _imported_with = read_at_import(dict(os.environ))
    _site_path = sys.path[1:]
    import gin  # noqa: F401
    import keras  # noqa: F401
    import pydantic.type_adapter  # noqa: F401
    import rich.progress  # noqa: F401
    import tensorboard.plugins.hparams.summary_v2  # noqa: F401
    import tensorflow as tf

    # Keras and the parts of TensorFlow are loaded at their first use.
    _ = tf.data.Dataset, tf.distribute.Strategy
    # What is here by now stays shared: no child's collection touches it.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.sendall(b"ready\n")
    _serve(requests)


def _serve(requests: socket.socket) -> None:
    while (received := _receive(requests)) is not None:
        start, fds = received
        number = _fork_orphan(start, fds)
        for fd in fds:
            os.close(fd)
        requests.sendall(b"%d" % number)


if __name__ == "__main__":
    main()
