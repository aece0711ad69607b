"""Limits how long a task waits for its peers, and names a lost one."""

import contextlib
import sys
from collections.abc import Iterator

import tensorflow as tf

from trainer import StartAgain
from trainer_plugins.control_plane import timeouts
from trainer_plugins.control_plane.agent import Agent

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
    """The tasks that this one waits for inside TensorFlow.

    Args:
        agent: knows which of them are lost.
        limit_seconds: for how long, see `Agent.waiting`.
    """

    def __init__(self, agent: Agent, *, limit_seconds: float) -> None:
        self._agent = agent
        self._limit_seconds = limit_seconds
        # A symptom that no lost peer explained, so that `leave` does not wait
        # for the news again.
        self._unexplained: BaseException | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Sets a time limit on waiting for peers, and names a lost one.

        Raises:
            StartAgain: the run has ended.
        """
        # TensorFlow's own time-out for collectives is no alternative: it
        # keeps a sleeping thread for each collective until the time is up,
        # which makes thousands of threads after a minute.
        with self._agent.waiting(self._limit_seconds):
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
            self._agent.leave(error)

    def _explain(self, error: BaseException) -> None:
        """Raises `StartAgain` if a lost peer is the cause of a symptom."""
        # The peer that broke this operation may itself have left because of
        # another task. Only the coordinator knows the first cause.
        reason = self._agent.wait_for_end(timeouts.NEWS_SECONDS)
        if reason is not None:
            raise StartAgain(reason) from error
        self._unexplained = error
