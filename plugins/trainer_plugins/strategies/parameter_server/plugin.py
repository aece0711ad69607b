"""The strategy parameter_server: asynchronous workers, variables on servers."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from trainer import UserError
from trainer.plugin_api import (
    Cluster,
    Detection,
    GraphLoop,
    Job,
    MakeDataset,
    Names,
    Natural,
    Positive,
    Seconds,
    Step,
    StrategyOptions,
    configurable,
    resolve_cluster,
    signals,
)
from trainer_plugins.control_plane.options import (
    SILENCE_SECONDS,
    Options,
    Silence,
)
from trainer_plugins.strategies.connecting import bounded
from trainer_plugins.strategies.devices import take_share
from trainer_plugins.strategies.parameter_server.counters import StepCounts
from trainer_plugins.strategies.parameter_server.serving import (
    departing,
    start_server,
)
from trainer_plugins.strategies.parameter_server.step_ranges import StepRanges
from trainer_plugins.strategies.parameter_server.worker_pool import (
    Closures,
    WorkerPool,
)
from trainer_plugins.strategies.processes import (
    ClusterStrategy,
    server_def_resolver,
)

_JOBS = ("chief", "worker", "ps")
# TensorFlow would give each GPU of a worker a batch, of which a step has one.
_ONE_GPU = (
    "The strategy parameter_server computes on one GPU of each worker, or on "
    "the CPU of each. Start a worker for each GPU: those of one host share its "
    "GPUs."
)


@configurable(module="trainer_plugins.strategies")
class ParameterServer(ClusterStrategy):
    """Workers share weights on servers, each at its own pace.

    Variables live on the parameter servers; each worker computes gradients on
    its own batches and applies them without waiting; asynchronous. For many
    uneven or unreliable workers, and models with large embeddings. The chief
    schedules, evaluates and writes.

    A step is one global batch, which any free worker processes: an epoch is one
    pass over the data, however many each of them does. Only a dataset, which
    cannot go back, replaces the batches of a worker that died with different
    ones. Steps, examples and metrics are counted exactly; with one worker the
    result is the same as on one device.

    Args:
        worker_hosts: `host:port` of each worker; a string is split at
            commas.
        ps_hosts: `host:port` of each parameter server.
        task_type: `"chief"`, `"worker"` or `"ps"`.
        task_index: this process's index within its job.
        steps_per_closure: the most steps that a worker is given at once, and
            that are repeated if it dies. Defaults to a quarter of its share of
            a host loop; a slow worker's share is small.
        max_staleness: the most updates between reading the weights and
            applying the gradient, except in a closure that is repeated after
            a worker's death. 0 runs one worker at a time, `None` sets no
            bound. The mean is logged as `staleness`.
        timeout_seconds: a host loop or evaluation that takes longer than
            this is abandoned with exit code 75; so is a chief that is in a
            callback for this long after a server was lost.
        start_seconds: how long to wait for peers at the start.
        silence_seconds: a task that sends no heartbeat for this long, such
            as a frozen one, counts as lost.

    A worker may die at any time: the others take over its work. It rejoins
    when it is restarted. When a server is lost, so are its variables: all
    tasks end with exit code 75, and continue from the newest checkpoint when
    they are restarted. A server that receives SIGTERM requests that the chief
    save first.

    Variables are not sharded: Keras 3 cannot train a variable that is split
    over servers, because a `ShardedVariable` has no handle. They are placed
    on the servers in turn, so split a large embedding into several
    `Embedding` layers, or use the strategy central_storage.

    Raises:
        UserError: the cluster is wrong.
        StartAgain: peers did not appear in time; they are named.
    """

    name = "parameter_server"
    # Steps are done at the same time: at which of them a batch was at fault is
    # not known.
    options = StrategyOptions(batches_by_step=False, carries_states=False)
    cluster: Cluster

    def __init__(
        self,
        *,
        worker_hosts: Names | None = None,
        ps_hosts: Names | None = None,
        task_type: Job | None = None,
        task_index: Natural | None = None,
        steps_per_closure: Positive | None = None,
        max_staleness: Natural | None = None,
        timeout_seconds: Seconds = 600.0,
        start_seconds: Seconds = 120.0,
        silence_seconds: Silence = SILENCE_SECONDS,
    ) -> None:
        cluster = resolve_cluster(
            worker_hosts=worker_hosts,
            ps_hosts=ps_hosts,
            task_type=task_type,
            task_index=task_index,
            ps=True,
        )
        if cluster is None or not all(cluster.jobs.get(j) for j in _JOBS):
            found = "none" if cluster is None else ", ".join(cluster.jobs)
            raise UserError(
                "The strategy parameter_server needs a cluster with chief, "
                f"worker and ps tasks; found: {found}. To try it here: "
                "python -m trainer.launch --num_workers=2 --num_ps=1 -- ..."
            )
        self.cluster = cluster
        workers = len(cluster.jobs["worker"])
        self._ranges = StepRanges(
            num_workers=workers,
            steps_per_closure=steps_per_closure,
            max_staleness=max_staleness,
        )
        # With one thread the coordinator deadlocks, and more than cores would
        # only wait for each other's work.
        self._threads = max(os.cpu_count() or 1, workers + 1)
        self._control = Options(
            start_seconds=start_seconds,
            silence_seconds=silence_seconds,
            leave_seconds=timeout_seconds,
            expendable=[name for name, _ in cluster.tasks("worker")],
        )
        self._counts = StepCounts()

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits where the environment names parameter servers."""
        cluster = resolve_cluster()
        if cluster is None or not cluster.jobs.get("ps"):
            return None
        workers, servers = (
            len(cluster.tasks("worker")),
            len(cluster.tasks("ps")),
        )
        return Detection(
            rank=35,
            found=f"{workers} workers and {servers} ps by {cluster.source}",
        )

    def serve(self) -> bool:
        """Serves as a worker or parameter server until the chief has ended."""
        if self.cluster.job not in ("worker", "ps"):
            return False
        take_share(self.cluster, ("worker",))
        agent = self._join(self.cluster, _JOBS)
        # TensorFlow may install a handler of its own, which ignores SIGTERM.
        with signals.handler_restored():
            server = start_server(self.cluster, _JOBS, threads=self._threads)
        logging.info("%s serves at %s.", self.cluster.name, server.target)
        with departing(agent, holds_state=self.cluster.job == "ps"):
            agent.wait()
        return True

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`; on the chief alone."""
        take_share(self.cluster, ("worker",))
        if self.is_evaluator:
            return tf.distribute.get_strategy()
        # Must come before the first TensorFlow operation.
        threading = tf.config.threading
        threading.set_inter_op_parallelism_threads(self._threads)
        agent = self._join(self.cluster, _JOBS)
        # TensorFlow connects to all servers here, and waits for each of them.
        with self.watched(), bounded(self._control.start_seconds):
            resolver = server_def_resolver(self.cluster, _JOBS)
            try:
                strategy = tf.distribute.ParameterServerStrategy(resolver)
                gpus = strategy.num_replicas_in_sync
            except ValueError as error:  # "Mismatched number of GPUs".
                raise UserError(f"{_ONE_GPU} {error}.") from error
            if gpus > 1:
                raise UserError(f"{_ONE_GPU} These have {gpus}.")
            self._worker_pool = WorkerPool(
                strategy,
                agent=agent,
                plugin=self,
                counts=self._counts,
                ranges=self._ranges,
            )
        # The chief evaluates on its own. Without this, TensorFlow would warn
        # at each call that no coordinator schedules it.
        strategy.extended._allow_run_without_coordinator = True
        return strategy

    @property
    def is_chief(self) -> bool:
        """Only the chief writes."""
        return self.cluster.job == "chief" or self.is_evaluator

    def why_not_compiled(self) -> str | None:
        """XLA cannot reach variables on other hosts."""
        return "XLA cannot compile a step whose variables are on other hosts"

    def distribute(self, make_dataset: MakeDataset, *, training: bool) -> Any:
        """Gives workers the batches of their closures; evaluates here."""
        if training:
            return self._worker_pool.distribute(make_dataset)
        return iter(make_dataset(range(1), is_kept=True))

    def runner(self, step: Step, *, training: bool) -> GraphLoop:
        """Schedules steps on the workers, or evaluates on the chief."""
        if training:
            return Closures(step, self._worker_pool)
        return GraphLoop(step, self.strategy, around=self.watched)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """See `StrategyPlugin.scope`: variables are placed on the servers."""
        with super().scope(), tf.variable_creator_scope(self._counts.note):
            yield

    def finish(self) -> None:
        """Ends the run on all servers."""
        self.close()

    def devices(self) -> list[str]:
        """The names of the workers; each manages its own devices."""
        return [name for name, _ in self.cluster.tasks("worker")]
