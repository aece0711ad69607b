"""The base class of strategy plugins.

A plugin owns everything that differs between one device and a pod: which
devices there are, the `tf.distribute.Strategy`, how input reaches the
replicas, how a loop of steps is run, what XLA may compile and who is chief.
"""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from trainer.errors import outside_graph
from trainer.runtime import signals
from trainer.step.gradients import among_zeros, reduce_sum
from trainer.step.graph import graph_function, repeat
from trainer.step.model.creation import portable_variables
from trainer.step.reductions.sums import Layout, Sums, stacked

# See `trainer.data.feeder`: gives the pieces of the global batches that belong
# to a range of replicas, in the order (step, micro-batch, replica).
MakePieces = Callable[..., tf.data.Dataset]
# One optimizer or evaluation step in cross-replica context: takes the
# iterator, returns a structure of per-replica tensors that add up over steps.
Step = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Detection:
    """What a plugin found on this machine.

    Attributes:
        rank: `--strategy=auto` takes the plugin with the highest rank.
        found: what was found, for the log and `run.json`.
    """

    rank: int
    found: str


class StrategyPlugin(abc.ABC):
    """A `tf.distribute` strategy and how a run uses it.

    Subclasses set `name`, implement `create`, and override what differs from
    an in-process strategy. Their constructor's keyword arguments are their
    gin parameters.

    Attributes:
        name: what `--strategy=` takes.
        facts: what must be equal in all processes before they start, such
            as the configuration's hash; set before `create`.
        static_shapes: every batch has the same shape: a short training
            batch is dropped, a short evaluation batch is padded. There
            `Trainer.eval_step` gets `(x, y, sample_weight)` whatever the data
            yields; the weight of padding is zero.
        loops_on_replicas: a replica may reduce inside a loop, so micro-batches
            are run in one there; elsewhere the loop is around the replicas.
            Needs static shapes.
        reduces_logs: a step's results are summed over replicas within it, not
            by the loop, which then reads those of one replica.
        reduces_sparse: gradients of embeddings travel as the rows they touch;
            otherwise they are made dense first.
        batches_by_step: which batch a step takes follows from its number, as
            `distribute` was given them.
        carries_states: each step sees what the one before it left, so that
            metrics may depend on the order of batches.
    """

    name: ClassVar[str] = ""
    static_shapes: ClassVar[bool] = False
    loops_on_replicas: ClassVar[bool] = False
    reduces_logs: ClassVar[bool] = False
    reduces_sparse: ClassVar[bool] = True
    batches_by_step: ClassVar[bool] = True
    carries_states: ClassVar[bool] = True
    known: ClassVar[dict[str, "type[StrategyPlugin]"]] = {}
    facts: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            StrategyPlugin.known[cls.name] = cls

    @classmethod
    def detect(cls) -> Detection | None:
        """What this plugin could use on this machine; `None` for nothing."""
        return None

    @abc.abstractmethod
    def create(self) -> tf.distribute.Strategy:
        """Makes the strategy. Called once, before any other TensorFlow op.

        Raises:
            UserError: the devices or peers it needs are not there.
        """

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy, made on first use."""
        # TensorFlow may install a handler of its own, which ignores SIGTERM.
        with signals.handler_restored():
            return self.create()

    @property
    def num_replicas(self) -> int:
        """How many replicas share one global batch."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, logs and exports."""
        return True

    @property
    def is_evaluator(self) -> bool:
        """Whether this process stands beside a cluster and only evaluates.

        Its strategy is then one of its own, without peers, and it counts as
        the chief of it.
        """
        return False

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Which flags are set in any process of the run.

        What a process decides by its own clock or signals goes through here,
        so that all of them do the same at the same step.

        Args:
            flags: equally many in all processes.
        """
        return list(flags)

    def any_process(self, flag: bool) -> bool:
        """Whether a flag is set in any process of the run; see `any_of`."""
        return self.any_of([flag])[0]

    def check_alike(self, facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Compares what must be equal in all processes of the run.

        Args:
            facts: JSON values by name, such as the step.

        Raises:
            UserError: they differ; the message names who differs in what.
        """

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only one that trains."""
        return True

    def why_start_again(self) -> str | None:
        """Why the run should save and be started again; `None` if not.

        Asked after each host loop, such as when a worker has come back.
        """
        return None

    def why_not_compiled(self) -> str | None:
        """Why XLA must not compile the step here; `None` if it may."""
        if self.num_replicas > 1:
            return f"XLA cannot compile a step of {self.num_replicas} replicas"
        return None

    def why_not_computed_in(self, dtype: str) -> str | None:
        """Why no layer may compute in a dtype here; `None` if it may.

        Args:
            dtype: such as `"float16"`.

        Returns:
            What the devices do instead, and what to set.
        """
        return None

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The context in which every variable of a run is created."""
        with (
            self.strategy.scope(),
            tf.variable_creator_scope(portable_variables),
        ):
            yield

    def distribute(self, make_pieces: MakePieces, *, training: bool) -> Any:
        """Makes the iterator that feeds each replica its pieces.

        Args:
            make_pieces: see `MakePieces`; its datasets are endless.
            training: whether they are for training or for evaluation.
        """

        def per_pipeline(context: tf.distribute.InputContext) -> Any:
            share = context.num_replicas_in_sync // context.num_input_pipelines
            first = context.input_pipeline_id * share
            return make_pieces(range(first, first + share))

        return iter(
            self.strategy.distribute_datasets_from_function(per_pipeline)
        )

    def runner(self, step: Step, *, training: bool) -> "Runner":
        """Makes what runs many steps in one call."""
        return GraphLoop(step, self.strategy)

    def serve(self) -> bool:
        """Serves other tasks if that is this process's role in a cluster.

        Returns:
            Whether it did; the run has then ended for this process.
        """
        return False

    def describe(self) -> dict[str, Any]:
        """What `run.json` says about devices and cluster."""
        return {
            "strategy": self.name,
            "replicas": self.num_replicas,
            "devices": self.devices(),
        }

    def devices(self) -> list[str]:
        """The devices of this process's replicas."""
        return [str(d) for d in self.strategy.extended.worker_devices]

    def finish(self) -> None:  # noqa: B027 - most have nobody to wait for
        """Called once, when the run has come to its end without an error."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Lets go of devices and peers. Called once, on every exit."""


class Runner(Protocol):
    """Runs many steps in one call."""

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """Runs `num_steps` steps.

        Args:
            iterator: what `StrategyPlugin.distribute` returned.
            num_steps: how many steps, at least one.
            carried: sums that earlier calls have returned; `None` begins one.

        Returns:
            Each of these sums with the results of the steps added, step by
            step in their order.
        """

    def trace(self, iterator: Any) -> None:
        """Builds the graph without running a step."""


class GraphLoop:
    """Runs a step n times in one `tf.function`, n being a tensor.

    Each replica adds its results up by itself, over all steps and calls: no
    step waits for a metric.

    Attributes:
        layout: where a step's results stand in what is summed; known once
            the step has been traced.
    """

    def __init__(self, step: Step, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._step = graph_function(step)
        self._loop = graph_function(self.many_steps)
        self.layout: Layout | None = None

    def __call__(
        self,
        iterator: Any,
        num_steps: int,
        carried: Sequence[Sums | None] = (None,),
    ) -> list[Sums]:
        """See `Runner.__call__`."""
        with outside_graph():
            layout = self.layout or self.lay_out(iterator)
            sums = self._loop(
                iterator,
                tf.constant(num_steps, tf.int64),
                tf.convert_to_tensor(stacked(carried, layout, self._num_rows)),
            )
            return [Sums(layout, sums, i) for i in range(len(carried))]

    def trace(self, iterator: Any) -> None:
        """See `Runner.trace`."""
        with outside_graph():
            layout = self.lay_out(iterator)
            self._loop.get_concrete_function(
                iterator,
                tf.constant(1, tf.int64),
                # As many sums as are asked for.
                tf.TensorSpec([None, self._num_rows, layout.size], tf.float64),
            )

    @property
    def traces(self) -> int:
        """How often the loop was traced; more than once is a slow surprise."""
        return int(self._loop.experimental_get_tracing_count())

    def many_steps(
        self, iterator: Any, num_steps: tf.Tensor, carried: tf.Tensor
    ) -> tf.Tensor:
        """The loop itself, to be traced.

        Args:
            iterator: see `Runner.__call__`.
            num_steps: int64 scalar.
            carried: float64 of shape `[sums, replicas, layout.size]`.

        Returns:
            The like of `carried`, equal in all processes.
        """
        layout = self.layout or self.lay_out(iterator)

        def add(sums: tf.Tensor, results: Any) -> tf.Tensor:
            return sums + layout.pack(results)

        def one_more(_: tf.Tensor, sums: Any) -> Any:
            return self._strategy.run(add, args=(sums, self._step(iterator)))

        sums = self._strategy.run(_own_row, args=(carried,))
        sums = repeat(one_more, sums, stop=num_steps)
        return self._first(self._strategy.run(_all_rows, args=(sums,)))

    def each_step(self, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        """Runs steps of a single replica, to be traced.

        Returns:
            The results of each: float64 of shape `[num_steps, layout.size]`.
        """
        layout = self.layout or self.lay_out(iterator)
        count = tf.cast(num_steps, tf.int32)
        results = tf.TensorArray(tf.float64, count, element_shape=[layout.size])

        def one_more(i: tf.Tensor, results: tf.TensorArray) -> tf.TensorArray:
            logs = tf.nest.map_structure(self._first, self._step(iterator))
            return results.write(i, layout.pack(logs))

        return repeat(one_more, results, stop=count).stack()

    def lay_out(self, iterator: Any) -> Layout:
        """Finds out from its one trace what the step returns."""
        traced = self._step.get_concrete_function(iterator)
        self.layout = Layout(
            tf.nest.map_structure(self._first, traced.structured_outputs)
        )
        return self.layout

    @property
    def _num_rows(self) -> int:
        """How many replicas add up results of their own."""
        return int(self._strategy.num_replicas_in_sync)

    def _first(self, value: Any) -> Any:
        """One replica's part of a per-replica value."""
        return self._strategy.experimental_local_results(value)[0]


def _own_row(carried: tf.Tensor) -> tf.Tensor:
    """This replica's sums: `[sums, size]`."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return carried[:, 0]
    return tf.gather(carried, context.replica_id_in_sync_group, axis=1)


def _all_rows(sums: tf.Tensor) -> tf.Tensor:
    """All replicas' sums: `[sums, replicas, size]`, equal on all of them."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    if count == 1:
        return sums[:, tf.newaxis]
    # Nothing is added to a sum but zeros.
    own = among_zeros(sums, context.replica_id_in_sync_group, count)
    return tf.transpose(reduce_sum(own), [1, 0, 2])
