"""Notices peers that are gone or hang, and says which."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from trainer import StartAgain
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.channel import Lifeline
from trainer_plugins.control_plane.sockets import connect, look_up

# How long a lifeline may take to tell of a task that is gone.
_NEWS_SECONDS = 2.0
_PROBE_SECONDS = 2.0
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


class Peers:
    """The tasks that this one waits for.

    Args:
        cluster: all tasks, and which of them this is.
        lifeline: joins them.
        jobs: the jobs that this one waits for.
        limit_seconds: how long; see `Lifeline.waiting`.
    """

    def __init__(
        self,
        cluster: Cluster,
        lifeline: Lifeline,
        *,
        jobs: Sequence[str],
        limit_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._lifeline = lifeline
        self._jobs = jobs
        self._limit_seconds = limit_seconds
        self._unexplained: BaseException | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Bounds what waits for peers, and names the one that is gone.

        TensorFlow has a time-out for collectives of its own, but keeps a
        sleeping thread for each collective until then: thousands after a
        minute.

        Raises:
            StartAgain: the run is over, or an operation failed and a peer
                does not answer any more.
        """
        with self._lifeline.waiting(self._limit_seconds):
            try:
                yield
            except _SYMPTOMS as error:
                self._explain(error)
                raise

    def leave(self) -> None:
        """Tells the peers why this task ends, by the exception under way.

        Raises:
            StartAgain: a lost peer is what that exception comes from.
        """
        error = sys.exception()
        try:
            # Not all that reaches out to peers is watched.
            if isinstance(error, _SYMPTOMS) and error is not self._unexplained:
                self._explain(error)
        except StartAgain as again:
            error = again
            raise
        finally:
            self._lifeline.leave(error)

    def _explain(self, error: BaseException) -> None:
        """Raises `StartAgain` if a lost peer is the cause of a symptom."""
        # What fails here may be due to a task that left because of another
        # one: the lifeline knows the first cause.
        reason = self._lifeline.why_over(_NEWS_SECONDS)
        if reason is None:
            lost = lost_peers(self._cluster, jobs=self._jobs)
            reason = self._lifeline.over
            if reason is None and lost:
                reason = f"lost {', '.join(lost)}"
        if reason is not None:
            raise StartAgain(reason) from error
        self._unexplained = error


def lost_peers(cluster: Cluster, *, jobs: Sequence[str]) -> list[str]:
    """The tasks that do not answer, with their addresses.

    The lifeline knows of those that are gone. This finds one that the first
    task still reaches, but this one does not.
    """
    peers = [t for t in cluster.tasks(*jobs) if t[0] != cluster.name]
    if not peers:
        return []
    with ThreadPoolExecutor(min(len(peers), _MOST_PROBES)) as pool:
        answers = pool.map(_answers, [address for _, address in peers])
        there = zip(peers, answers, strict=True)
        return [cluster.label(name) for (name, _), ok in there if not ok]


def _answers(address: str) -> bool:
    try:
        targets = look_up(address, seconds=_PROBE_SECONDS)
        connect(targets, seconds=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True
