"""Detects peers that are lost or frozen, and names them."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from trainer import StartAgain
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.channel import Channel
from trainer_plugins.control_plane.sockets import connect, look_up

# How long the channel may take to report a lost task.
_REPORT_SECONDS = 2.0
_PROBE_SECONDS = 2.0
# Each probe occupies a thread.
_MOST_PROBES = 64
# What TensorFlow raises when a peer is gone. A bug in user code can raise the
# same, so these alone do not mean that a peer was lost.
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
        channel: connects them.
        jobs: the jobs that this task waits for.
        limit_seconds: for how long, see `Channel.waiting`.
    """

    def __init__(
        self,
        cluster: Cluster,
        channel: Channel,
        *,
        jobs: Sequence[str],
        limit_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._channel = channel
        self._jobs = jobs
        self._limit_seconds = limit_seconds
        # A symptom that no lost peer explained, so that `leave` does not probe
        # the peers again.
        self._unexplained: BaseException | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Sets a time limit on waiting for peers, and names a lost one.

        Raises:
            StartAgain: the run has ended, or an operation failed and a peer
                no longer answers.
        """
        # TensorFlow's own time-out for collectives is no alternative: it
        # keeps a sleeping thread for each collective until the time is up,
        # which makes thousands of threads after a minute.
        with self._channel.waiting(self._limit_seconds):
            try:
                yield
            except _SYMPTOMS as error:
                self._explain(error)
                raise

    def leave(self) -> None:
        """Sends the peers the reason this task ends: the current exception.

        Raises:
            StartAgain: a lost peer caused that exception.
        """
        error = sys.exception()
        try:
            # Some calls that need peers are made outside of `watched`.
            if isinstance(error, _SYMPTOMS) and error is not self._unexplained:
                self._explain(error)
        except StartAgain as again:
            error = again
            raise
        finally:
            self._channel.leave(error)

    def _explain(self, error: BaseException) -> None:
        """Raises `StartAgain` if a lost peer is the cause of a symptom."""
        # The peer that broke this operation may itself have left because of
        # another task. Only the channel knows the first cause.
        reason = self._channel.wait_for_end(_REPORT_SECONDS)
        if reason is None:
            lost = lost_peers(self._cluster, jobs=self._jobs)
            # The channel may have learned the cause while the peers were
            # probed.
            reason = self._channel.end_reason
            if reason is None and lost:
                reason = f"lost {', '.join(lost)}"
        if reason is not None:
            raise StartAgain(reason) from error
        self._unexplained = error


def lost_peers(cluster: Cluster, *, jobs: Sequence[str]) -> list[str]:
    """Returns the tasks that do not answer, with their addresses.

    The channel reports tasks that are gone. This finds a task that the first
    task can still reach, but this one cannot.
    """
    peers = [t for t in cluster.tasks(*jobs) if t[0] != cluster.name]
    if not peers:
        return []
    # At the same time: the time limits of many vanished hosts would add up.
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
