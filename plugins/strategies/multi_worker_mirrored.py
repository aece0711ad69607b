"""Copies of the model on the devices of several hosts."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gin
import tensorflow as tf

from plugins.clusters.peers import watched
from plugins.clusters.rendezvous import meet
from plugins.clusters.resolve import resolve_cluster
from plugins.strategies.processes import server_def_resolver, versions
from trainer import Detection, StrategyPlugin, UserError, nearest
from trainer.strategy import Runner, Step

_JOBS = ("chief", "worker")
_IMPLEMENTATIONS = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


@gin.configurable(module="plugins.strategies")
class MultiWorkerMirrored(StrategyPlugin):
    """A replica on each device of several hosts, all in step.

    Variables are mirrored on every device of every worker; gradients travel
    by collective all-reduce (NCCL between GPUs, else rings over gRPC);
    synchronous. For one model on the GPUs of several hosts. Worker 0, or the
    chief, writes; all must see the same `model_dir`.

    Args:
        worker_hosts: `host:port` of each worker, separated by commas.
        task_index: which of them this process is.
        task_type: `"worker"` or `"chief"`.
        implementation: `"auto"`, `"ring"` or `"nccl"`.
        bytes_per_pack: gradients are packed into transfers of about this
            many bytes; 0 leaves it to TensorFlow.
        timeout_seconds: a host loop, evaluation or start that takes longer
            than this is given up with exit code 75.
        start_seconds: how long to wait for peers at the start.

    Without `worker_hosts` the cluster comes from the environment, see
    `plugins.clusters.resolve`; without any there is one worker.

    Raises:
        UserError: the cluster is wrong or an option unknown.
        StartAgain: peers did not appear in time; they are named.
    """

    name = "multi_worker_mirrored"
    # TensorFlow's collective gather keeps the shape of its first call: the
    # rows that a step touches vary.
    reduces_sparse = False

    def __init__(
        self,
        *,
        worker_hosts: str | None = None,
        task_index: int | None = None,
        task_type: str | None = None,
        implementation: str = "auto",
        bytes_per_pack: int = 0,
        timeout_seconds: float = 600.0,
        start_seconds: float = 120.0,
    ) -> None:
        if implementation not in _IMPLEMENTATIONS:
            raise UserError(
                f"MultiWorkerMirrored.implementation = {implementation!r} is "
                f"unknown. {nearest(implementation, _IMPLEMENTATIONS)}"
            )
        self._options = tf.distribute.experimental.CommunicationOptions(
            implementation=_IMPLEMENTATIONS[implementation],
            bytes_per_pack=bytes_per_pack,
        )
        self._timeout_seconds = timeout_seconds
        self._start_seconds = start_seconds
        self.cluster = resolve_cluster(
            worker_hosts=worker_hosts,
            task_index=task_index,
            task_type=task_type,
        )

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits where the environment speaks of several workers, and no ps."""
        cluster = resolve_cluster()
        if cluster is None or cluster.jobs.get("ps"):
            return None
        count = len(cluster.tasks(*_JOBS))
        return Detection(rank=30, found=f"{count} workers by {cluster.source}")

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        cluster = self.cluster
        if self.is_evaluator:
            return tf.distribute.get_strategy()
        if cluster is None:
            return tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=self._options
            )
        meet(
            cluster,
            jobs=_JOBS,
            facts=versions(),
            timeout_seconds=self._start_seconds,
        )
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=server_def_resolver(cluster, _JOBS),
            communication_options=self._options,
        )

    @property
    def is_chief(self) -> bool:
        """The chief if there is one, else worker 0."""
        cluster = self.cluster
        if cluster is None or self.is_evaluator:
            return True
        return cluster.name == cluster.tasks(*_JOBS)[0][0]

    @property
    def is_evaluator(self) -> bool:
        """See `StrategyPlugin.is_evaluator`."""
        return self.cluster is not None and self.cluster.job == "evaluator"

    def why_not_compiled(self) -> str | None:
        """XLA has no collectives between processes on CPUs."""
        return "XLA cannot compile a step that several workers share"

    def any_process(self, flag: bool) -> bool:
        """See `StrategyPlugin.any_process`."""
        if self.cluster is None or self.is_evaluator:
            return flag
        with self._watched():
            return bool(self._count(tf.constant(flag)) > 0)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """See `StrategyPlugin.scope`: variables come from the chief."""
        with self._watched(), super().scope():
            yield

    def runner(self, step: Step, *, training: bool) -> Runner:
        """See `StrategyPlugin.runner`."""
        loop = super().runner(step, training=training)
        return loop if self.cluster is None else _Watched(loop, self._watched)

    def finish(self) -> None:
        """Waits for the others, so that none sees a peer vanish at the end."""
        self.any_process(False)

    def describe(self) -> dict[str, Any]:
        """See `StrategyPlugin.describe`."""
        described = super().describe()
        if self.cluster is not None:
            described["cluster"] = self.cluster.describe()
        return described

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        if self.cluster is None:
            return contextlib.nullcontext()
        return watched(
            self.cluster, jobs=_JOBS, limit_seconds=self._timeout_seconds
        )

    @tf.function
    def _count(self, flag: tf.Tensor) -> tf.Tensor:
        """On how many replicas a flag is set."""

        def count() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.cast(flag, tf.float32)
            )

        counts = self.strategy.run(count)
        return self.strategy.experimental_local_results(counts)[0]


class _Watched:
    """A runner whose calls are bounded in time."""

    def __init__(
        self,
        loop: Runner,
        guard: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._loop = loop
        self._guard = guard

    def __call__(self, iterator: Any, num_steps: int) -> Any:
        """See `Runner.__call__`."""
        with self._guard():
            return self._loop(iterator, num_steps)

    def trace(self, iterator: Any) -> None:
        """See `Runner.trace`."""
        self._loop.trace(iterator)
