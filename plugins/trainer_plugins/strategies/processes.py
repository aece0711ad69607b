"""The base class and helpers of strategies with several processes."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer import StartAgain, StrategyPlugin
from trainer.plugin_api import Cluster
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.control_plane.options import Options
from trainer_plugins.strategies.devices import count

# The errors that TensorFlow raises when a peer is gone. A bug in user code can
# raise the same, so these alone do not mean that a peer was lost.
_SYMPTOMS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


class ClusterStrategy(StrategyPlugin):
    """A strategy plugin whose processes wait for each other.

    Attributes:
        cluster: all tasks, and which of them this is; `None` without others.
    """

    cluster: Cluster | None
    # Set by the constructor of a subclass.
    _control: Options
    # Set after the rendezvous; an evaluator takes no part in it.
    _agent: Agent | None = None
    # A symptom that no lost peer explained, so that `close` does not wait for
    # the news again.
    _unexplained: BaseException | None = None

    @property
    def is_evaluator(self) -> bool:
        """See `StrategyPlugin.is_evaluator`."""
        return self.cluster is not None and self.cluster.job == "evaluator"

    def describe(self) -> dict[str, Any]:
        """See `StrategyPlugin.describe`."""
        described = super().describe()
        if self.cluster is not None:
            described["cluster"] = self.cluster.describe()
        return described

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """See `StrategyPlugin.scope`; creating variables waits for peers."""
        _ = self.strategy  # Creating it joins the run.
        with self.watched(), super().scope():
            yield

    def close(self) -> None:
        """Sends the other tasks the reason why this one ends, and leaves.

        Raises:
            StartAgain: a lost task caused the end; it is named.
        """
        if self._agent is None:
            return
        error = sys.exception()
        try:
            # Some calls that need peers are made outside of `watched`.
            if isinstance(error, _SYMPTOMS) and error is not self._unexplained:
                self._explain(self._agent, error)
        except StartAgain as again:
            error = again
            raise
        finally:
            self._agent.leave(error)

    def why_start_again(self) -> str | None:
        """See `StrategyPlugin.why_start_again`: a task is back, or leaves."""
        return None if self._agent is None else self._agent.preempt_reason

    def _join(
        self,
        cluster: Cluster,
        jobs: Sequence[str],
        on_end: Callable[[str], None] | None = None,
        **facts: Any,
    ) -> Agent:
        """Joins the run, see `Agent`; from then on `watched` has a limit."""
        versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        self._agent = Agent(
            cluster,
            jobs=jobs,
            facts={**versions, **self.facts, **facts},
            options=self._control,
            on_end=on_end,
        )
        return self._agent

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Sets a time limit on a call that waits for peers.

        Raises:
            StartAgain: a lost peer has ended the run; it is named.
        """
        if self._agent is None:
            yield
            return
        # TensorFlow's own time-out for collectives is no alternative: it
        # keeps a sleeping thread for each collective until the time is up,
        # which makes thousands of threads after a minute.
        with self._agent.waiting(self._control.leave_seconds):
            try:
                yield
            except _SYMPTOMS as error:
                self._explain(self._agent, error)
                raise

    def _explain(self, agent: Agent, error: BaseException) -> None:
        """Raises `StartAgain` if a lost peer is the cause of a symptom."""
        # The peer that broke this operation may itself have left because of
        # another task. Only the coordinator knows the first cause.
        reason = agent.why_failed()
        if reason is not None:
            raise StartAgain(reason) from error
        self._unexplained = error


def server_def_resolver(
    cluster: Cluster, jobs: Sequence[str]
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns a cluster as the resolver that `tf.distribute` needs."""
    # Without other jobs, such as the evaluator: TensorFlow would wait for them.
    spec = {job: cluster.jobs[job] for job in jobs if cluster.jobs.get(job)}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer="grpc",
        # TensorFlow counts GPUs by itself for its own resolvers only.
        num_accelerators={"GPU": count("GPU")},
    )
