"""Keeps a process able to act while TensorFlow connects its workers.

TensorFlow's Python binding keeps Python's lock while it waits for them, which
is up to an hour for one that was lost a moment ago: no other thread could
notice that, or end the process.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer_plugins.strategies import tensorflow_private as private

_LIBRARY = "libtensorflow_cc.so.2"


@contextlib.contextmanager
def lock_released() -> Iterator[None]:
    """Lets other threads run while TensorFlow connects workers inside.

    Does nothing where TensorFlow's C function cannot be found.
    """
    setattr(
        private.binding, private.CONNECT, _without_lock() or private.connect
    )
    try:
        yield
    finally:
        setattr(private.binding, private.CONNECT, private.connect)


def configure_service(
    spec: tf.train.ClusterSpec, *, heartbeat: float, start: float
) -> None:
    """Sets the limits of TensorFlow's own coordination; before it connects.

    At its defaults it would end a worker's operations after 10 s, before the
    control plane has lost the worker and can name it, and wait for one that
    does not connect for an hour, without a name.

    Args:
        spec: the cluster that it connects.
        heartbeat: after how many seconds of silence a worker counts as lost.
        start: after how many seconds connecting fails with the names of those
            that are missing.
    """
    jobs = [
        private.CoordinatedJob(name=job, num_tasks=spec.num_tasks(job))
        for job in spec.jobs
    ]
    context = private.eager_context()
    context.configure_coordination_service(
        "standalone",
        service_leader=private.coordination_leader(spec),
        coordinated_jobs=jobs,
        heartbeat_timeout_in_ms=int(1000 * heartbeat),
        cluster_register_timeout_in_ms=int(1000 * start),
    )
    # It has no argument, and without it the limit is for the leader alone.
    config = private.service_config(context)
    config.cluster_register_with_barrier = True


def unconnected(error: tf.errors.DeadlineExceededError) -> str:
    """Why TensorFlow gave up connecting the workers, by its error."""
    # Those that the leader has missed, or else the leader itself.
    _, _, missing = error.message.partition("timed out task names:")
    missing = missing.partition("\n\n")[0] or error.message
    found = re.findall(r"/job:(\w+)/replica:0/task:(\d+)", missing)
    names = sorted({f"{job} {index}" for job, index in found})
    return (
        f"TensorFlow did not connect {', '.join(names) or 'all tasks'} in "
        "start_seconds: a firewall may block the ports of the cluster"
    )


def abort_collectives(reason: str) -> None:
    """Makes all collective operations here fail with a reason, for good."""
    # An operation that waits for a lost peer has no other end, and the
    # context that can abort it has no public name.
    private.eager_context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Ends the process, with all stacks, if this takes longer.

    It does so even while Python's lock is kept.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _without_lock() -> Callable[[Any, bytes], None] | None:
    """A replacement for the binding: `ctypes` releases the lock in a call."""
    path = os.path.join(os.path.dirname(tf.__file__), _LIBRARY)
    try:
        # Never a second copy of what TensorFlow has loaded.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        enable = library.TFE_EnableCollectiveOps
        new_status, delete_status = (
            library.TF_NewStatus,
            library.TF_DeleteStatus,
        )
        get_code, get_message = library.TF_GetCode, library.TF_Message
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    # Undeclared, pointers would be cut to the size of C's int.
    new_status.argtypes, new_status.restype = [], pointer
    delete_status.argtypes, delete_status.restype = [pointer], None
    get_code.argtypes, get_code.restype = [pointer], ctypes.c_int
    get_message.argtypes, get_message.restype = [pointer], ctypes.c_char_p
    enable.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, pointer]
    enable.restype = None
    unwrap = ctypes.pythonapi.PyCapsule_GetPointer
    unwrap.argtypes = [ctypes.py_object, ctypes.c_char_p]
    unwrap.restype = pointer

    def call(handle: Any, server_def: bytes) -> None:
        status = new_status()
        try:
            enable(unwrap(handle, None), server_def, len(server_def), status)
            if code := get_code(status):
                # The exception that the binding would raise, so that callers
                # need not know the difference.
                kind = tf.compat.v1.errors.exception_type_from_error_code(code)
                raise kind(None, None, get_message(status).decode())
        finally:
            delete_status(status)

    return call
