"""The strategy multi_worker_mirrored: replicas on several hosts."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from trainer import StartAgain, UserError
from trainer.plugin_api import (
    Detection,
    GraphLoop,
    Job,
    Names,
    Natural,
    Positive,
    Seconds,
    Step,
    StrategyOptions,
    configurable,
    graph_function,
    read_number,
    resolve_cluster,
)
from trainer_plugins.control_plane.options import (
    SILENCE_SECONDS,
    Options,
    Silence,
)
from trainer_plugins.strategies.connecting import (
    abort_collectives,
    bounded,
    configure_service,
    lock_released,
    unconnected,
)
from trainer_plugins.strategies.devices import count, take_share
from trainer_plugins.strategies.processes import (
    ClusterStrategy,
    server_def_resolver,
)

_JOBS = ("chief", "worker")
_MIN_WORKERS = "TRAINER_MIN_WORKERS"
# Seconds after a limit, by which a process that knows more should have reported
# it.
_LATER = 30.0
_IMPLEMENTATIONS = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


@configurable(module="trainer_plugins.strategies")
class MultiWorkerMirrored(ClusterStrategy):
    """A replica on each device of several hosts, in lockstep.

    Variables are mirrored on every device of every worker; gradients travel
    by collective all-reduce (NCCL between GPUs, else rings over gRPC);
    synchronous. For one model on the GPUs of several hosts. Worker 0, or the
    chief, writes; all must see the same `model_dir`.

    Args:
        worker_hosts: every worker's `host:port`; a string is split at commas.
            `None` takes them from the environment.
        task_index: this process's index within its job.
        task_type: `"worker"` or `"chief"`.
        implementation: the all-reduce: `"auto"`, `"ring"` or `"nccl"`.
        timeout_seconds: a host loop, evaluation or start that takes longer
            than this is abandoned with exit code 75; so is a worker that is
            in a callback for this long after the others have given up.
        start_seconds: how long to wait for peers at the start.
        silence_seconds: a worker that sends no heartbeat for this long, such
            as a frozen one, counts as lost.
        min_workers: start without some workers if at least this many are
            present; the global batch stays the same. `None` takes the
            environment variable `TRAINER_MIN_WORKERS`; without it, all
            workers are needed.

    Without `worker_hosts` the cluster comes from the environment, see
    `trainer.strategy.cluster.resolve`; without one there is a single worker.

    Raises:
        UserError: the cluster is wrong or an option unknown.
        StartAgain: peers did not appear in time; they are named.
    """

    name = "multi_worker_mirrored"
    # TensorFlow's collective gather keeps the shape of its first call, but
    # the number of rows that a sparse gradient touches varies by step.
    options = StrategyOptions(reduces_sparse=False)

    def __init__(
        self,
        *,
        worker_hosts: Names | None = None,
        task_index: Natural | None = None,
        task_type: Job | None = None,
        implementation: Literal["auto", "ring", "nccl"] = "auto",
        timeout_seconds: Seconds = 600.0,
        start_seconds: Seconds = 120.0,
        silence_seconds: Silence = SILENCE_SECONDS,
        min_workers: Positive | None = None,
    ) -> None:
        self._options = tf.distribute.experimental.CommunicationOptions(
            implementation=_IMPLEMENTATIONS[implementation],
        )
        self._control = Options(
            start_seconds=start_seconds,
            silence_seconds=silence_seconds,
            leave_seconds=timeout_seconds,
            min_workers=min_workers or _min_workers(),
        )
        self.cluster = resolve_cluster(
            worker_hosts=worker_hosts,
            task_index=task_index,
            task_type=task_type,
        )

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits where the environment names several workers, and no servers."""
        cluster = resolve_cluster()
        if cluster is None or cluster.jobs.get("ps"):
            return None
        count = len(cluster.tasks(*_JOBS))
        # Above mirrored, whose devices are a part of this strategy's.
        return Detection(rank=30, found=f"{count} workers by {cluster.source}")

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        cluster = self.cluster
        if cluster is not None:
            take_share(cluster, _JOBS)
        if not count("GPU") and count("CPU") > 1:
            raise UserError(
                "The strategy multi_worker_mirrored has one replica on the "
                "CPU of each task: virtual_devices has no meaning with it. "
                "Start more tasks, or use --strategy=mirrored."
            )
        if self.is_evaluator:
            return tf.distribute.get_strategy()
        # A single worker: there is no peer to wait for and no port to open.
        if cluster is None:
            return tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=self._options
            )
        # A single worker has no one to wait for.
        if len(cluster.tasks(*_JOBS)) > 1:
            # A collective that waits for a lost peer would never return.
            agent = self._join(
                cluster, _JOBS, on_end=abort_collectives, GPUs=count("GPU")
            )
            self.cluster = cluster = agent.cluster
        # In here, TensorFlow's workers wait for each other as well.
        limit = self._control.start_seconds
        resolver = server_def_resolver(cluster, _JOBS)
        if self._agent is not None:
            configure_service(
                resolver.cluster_spec(),
                heartbeat=self._control.silence_seconds + _LATER,
                start=limit,
            )
        try:
            with self.watched(), bounded(limit + _LATER), lock_released():
                return tf.distribute.MultiWorkerMirroredStrategy(
                    cluster_resolver=resolver,
                    communication_options=self._options,
                )
        except tf.errors.DeadlineExceededError as error:
            raise StartAgain(unconnected(error)) from error
        except RuntimeError as error:
            # Aborting the collectives of a lost worker starts TensorFlow, and
            # that is then too early for this strategy.
            if self._agent is not None and self._agent.end_reason:
                raise StartAgain(self._agent.end_reason) from error
            raise

    @property
    def is_chief(self) -> bool:
        """The chief if there is one, else worker 0."""
        cluster = self.cluster
        if cluster is None or self.is_evaluator:
            return True
        return cluster.name == cluster.tasks(*_JOBS)[0][0]

    @property
    def is_alone(self) -> bool:
        """See `StrategyPlugin.is_alone`."""
        cluster = self.cluster
        return (
            cluster is None
            or self.is_evaluator
            or len(cluster.tasks(*_JOBS)) == 1
        )

    def why_not_compiled(self) -> str | None:
        """XLA has no collectives between processes on CPUs."""
        return "XLA cannot compile a step that several workers share"

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """See `StrategyPlugin.any_of`."""
        if self.cluster is None or self.is_evaluator:
            return list(flags)
        with self.watched():
            # As numbers, because all-reduce has no logical or.
            counts = self._count(tf.constant(flags, tf.float32))
            return [bool(count > 0) for count in counts.numpy()]

    def runner(self, step: Step, *, training: bool) -> GraphLoop:
        """See `StrategyPlugin.runner`."""
        return GraphLoop(step, self.strategy, around=self.watched)

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """See `StrategyPlugin.check_alike`."""
        if self._agent is not None:
            self._agent.barrier(facts, seconds=self._control.leave_seconds)

    def finish(self) -> None:
        """Waits for the others, so that none loses a peer at the end."""
        # Comparing nothing is a barrier, which needs no collective.
        self.check_alike({})
        self.close()

    @graph_function
    def _count(self, flags: tf.Tensor) -> tf.Tensor:
        """Counts on how many replicas each flag is set."""

        def count() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # A function argument has no device, and `all_reduce` needs one.
            own = tf.identity(flags)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        counts = self.strategy.run(count)
        return self.strategy.experimental_local_results(counts)[0]


def _min_workers() -> int | None:
    if _MIN_WORKERS not in os.environ:
        return None
    return read_number(os.environ, _MIN_WORKERS, least=1)
