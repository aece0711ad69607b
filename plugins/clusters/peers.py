"""Notices peers that are gone or hang, and says which."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from plugins.clusters.cluster import Cluster
from plugins.clusters.sockets import connect, look_up
from trainer import EXIT_START_AGAIN, StartAgain

_PROBE_SECONDS = 5.0
_MOST_PROBES = 64
# What TensorFlow raises when a peer is gone; it may also be a bug of ours.
_SYMPTOMS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


@contextlib.contextmanager
def watched(
    cluster: Cluster, *, jobs: Sequence[str], limit_seconds: float
) -> Iterator[None]:
    """Bounds what waits for peers, and names the one that is gone.

    TensorFlow has a time-out for collectives of its own, but keeps a sleeping
    thread for each collective until then: thousands after a minute.

    Args:
        cluster: the tasks, and which of them this is.
        jobs: the jobs that this one waits for.
        limit_seconds: after so long all stacks are written to stderr and the
            process ends with `EXIT_START_AGAIN`; nothing can interrupt an
            operation that waits inside TensorFlow.

    Raises:
        StartAgain: an operation failed and a peer does not answer any more.
    """
    reason = f"{cluster.name} waited {limit_seconds:g} s for its peers"
    timer = threading.Timer(limit_seconds, give_up, (reason,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except _SYMPTOMS as error:
        lost = lost_peers(cluster, jobs=jobs)
        if not lost:
            raise
        raise StartAgain(f"lost {', '.join(lost)}") from error
    finally:
        timer.cancel()


def lost_peers(cluster: Cluster, *, jobs: Sequence[str]) -> list[str]:
    """The tasks that do not answer, with their addresses.

    Waits a little for one to stop answering: a process that dies may fail an
    operation before its port is closed.
    """
    peers = [t for t in cluster.tasks(*jobs) if t[0] != cluster.name]
    if not peers:
        return []
    deadline = time.monotonic() + _PROBE_SECONDS
    # All at once: while one is waited for, another survivor may have ended.
    with ThreadPoolExecutor(min(len(peers), _MOST_PROBES)) as pool:
        while True:
            answers = pool.map(_answers, [address for _, address in peers])
            there = zip(peers, answers, strict=True)
            lost = [f"{name} ({a})" for (name, a), ok in there if not ok]
            if lost or time.monotonic() > deadline:
                return lost
            time.sleep(0.2)


def _answers(address: str) -> bool:
    try:
        connect(look_up(address, seconds=2.0), seconds=2.0).close()
    except (OSError, StartAgain):
        return False
    return True


def give_up(reason: str) -> None:
    """Ends the process with `EXIT_START_AGAIN`, and all stacks on stderr.

    For where an operation waits inside TensorFlow: nothing can interrupt it.
    """
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.write(f"start again: {reason}\n")
    sys.stderr.flush()
    os._exit(EXIT_START_AGAIN)
