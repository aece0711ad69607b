"""The base class and helpers of strategies with several processes."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from trainer import StrategyPlugin
from trainer.plugin_api import Cluster, GraphLoop, Sums, skip_teardown
from trainer_plugins.control_plane.agent import Agent
from trainer_plugins.control_plane.options import Options
from trainer_plugins.control_plane.peers import Peers


class ClusterStrategy(StrategyPlugin):
    """A strategy plugin whose processes wait for each other.

    Attributes:
        cluster: all tasks, and which of them this is; `None` without others.
    """

    cluster: Cluster | None
    # Set by the constructor of a subclass.
    _control: Options
    # Set after the rendezvous; an evaluator takes no part in it.
    _peers: Peers | None = None

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
        with self._watched(), super().scope():
            yield

    def close(self) -> None:
        """Sends the other tasks the reason why this one ends, and leaves.

        Raises:
            StartAgain: a lost task caused the end; it is named.
        """
        if self._peers is not None:
            self._peers.leave()

    def _join(
        self,
        cluster: Cluster,
        jobs: Sequence[str],
        on_end: Callable[[str], None] | None = None,
    ) -> Agent:
        """Joins the run, see `Agent`; from then on `_watched` has a limit."""
        versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        agent = Agent(
            cluster,
            jobs=jobs,
            facts={**versions, **self.facts},
            options=self._control,
            on_end=on_end,
        )
        limit = self._control.leave_seconds
        self._peers = Peers(agent, limit_seconds=limit)
        return agent

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        """A context for calls that wait for peers; see `Peers.watched`."""
        if self._peers is None:
            return contextlib.nullcontext()
        return self._peers.watched()


def server_def_resolver(
    cluster: Cluster, jobs: Sequence[str]
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns a cluster as the resolver that `tf.distribute` needs."""
    # At exit, TensorFlow would wait for servers that may be gone.
    skip_teardown()
    # Without other jobs, such as the evaluator: TensorFlow would wait for them.
    spec = {job: cluster.jobs[job] for job in jobs if cluster.jobs.get(job)}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer="grpc",
    )


def start_server(
    cluster: Cluster, jobs: Sequence[str], *, threads: int
) -> tf.distribute.Server:
    """Starts the TensorFlow server of a worker or parameter server."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    return tf.distribute.Server(
        server_def_resolver(cluster, jobs).cluster_spec(),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=config,
    )


def abort_collectives(reason: str) -> None:
    """Makes all collective operations here fail with a reason, for good."""
    # An operation that waits for a lost peer has no other end, and the
    # context that can abort it has no public name.
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


class WatchedRunner:
    """A runner whose calls wait for peers, within a guard."""

    def __init__(
        self,
        loop: GraphLoop,
        guard: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._loop = loop
        self._guard = guard

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `Runner.__call__`."""
        with self._guard():
            return self._loop(iterator, num_steps, carried)

    def trace(self, iterator: Any) -> None:
        """See `Runner.trace`."""
        self._loop.trace(iterator)

    def operations(self) -> collections.Counter[str]:
        """See `GraphLoop.operations`."""
        return self._loop.operations()
