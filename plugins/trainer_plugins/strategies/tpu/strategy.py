"""The strategy tpu: a TPU VM, a pod slice, or a TPU over the network."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from trainer import StartAgain, StrategyPlugin, UserError
from trainer.plugin_api import (
    Detection,
    GraphLoop,
    MakeDataset,
    Programs,
    Section,
    Step,
    StrategyOptions,
    Text,
    configurable,
    repeat,
)
from trainer_plugins.strategies.tpu import host
from trainer_plugins.strategies.tpu.refusals import (
    check_input,
    check_step,
    layers_in_names,
)
from trainer_plugins.strategies.tpu.topology import Topology

# The errors that TensorFlow raises if a TPU is missing, not ready or unknown.
_NO_TPU = (tf.errors.OpError, RuntimeError, ValueError, OSError)
# A killed process may take a while to end, and to release the chips.
_RELEASE_SECONDS = 30.0


@configurable(module="trainer_plugins.strategies")
class TPU(StrategyPlugin):
    """A replica on each TPU core, in lockstep.

    Variables are mirrored on every core; gradients travel over the chips'
    interconnect; synchronous. XLA compiles the step for one shape: a short
    training batch is left out, a short evaluation batch is padded with
    examples of weight zero. For a TPU VM, or a slice of many hosts.

    One process controls all hosts of a slice, and writes. Start it on one of
    them only, with the slice's name and with `TPU_LOAD_LIBRARY=0` in the
    environment.

    Args:
        tpu: `"local"` on a TPU VM of one host, the name of a TPU, or
            `"grpc://host:port"`; defaults to the environment's `TPU_NAME`,
            else `"local"`.
        tpu_topology: a slice such as `"v5e:2x4"`, for which a check compiles
            the run without a TPU.

    Raises:
        UserError: there is no such TPU, or no such slice.
    """

    name = "tpu"
    options = StrategyOptions(
        static_shapes=True,
        loops_on_replicas=True,
        reduces_logs=True,
        # TensorFlow has no sparse update of a variable on a TPU.
        reduces_sparse=False,
        # A step with Python code in it, also on the host, is refused.
        carries_states=False,
        evaluates_here=False,
    )

    def __init__(
        self,
        *,
        tpu: Text | None = None,
        tpu_topology: Text | None = None,
    ) -> None:
        if tpu and tpu_topology:
            raise UserError(
                f"--tpu={tpu} names a TPU that exists, and --tpu_topology="
                f"{tpu_topology} one to compile for. Leave one of them out."
            )
        self._slice = Topology.parse(tpu_topology) if tpu_topology else None
        self._tpu = tpu or host.default_tpu()
        self._resolver: Any = None
        self._topology: Any = None

    @classmethod
    def detect(cls) -> Detection | None:
        """Fits on a TPU VM, or where the environment names a TPU."""
        found = host.found_tpu()
        return None if found is None else Detection(rank=40, found=found)

    def create(self) -> tf.distribute.Strategy:
        """See `StrategyPlugin.create`."""
        if self._slice is not None:
            # Only here: these use names of TensorFlow that are not public.
            from trainer_plugins.strategies.tpu import libtpu_process
            from trainer_plugins.strategies.tpu.stand_in import (
                TopologyStrategy,
            )

            if reason := libtpu_process.why_not_here():
                raise UserError(reason)
            return TopologyStrategy(self._slice.chips)
        host.require_tpu(self._tpu)
        if not self._is_remote:
            _require_free_chips()
        try:
            return self._start()
        except _NO_TPU as error:
            why = f"The TPU {self._tpu!r} does not start: {_reason(error)}"
            if _comes_later(error):
                raise StartAgain(why) from None
            raise UserError(f"{why}\n{host.HERE_INSTEAD}") from None

    @property
    def why_only_checked(self) -> str | None:
        """See `StrategyPlugin.why_only_checked`."""
        if self._slice is None:
            return None
        return f"--tpu_topology={self._slice} names a TPU that is not here"

    def check(self, programs: Programs) -> Sequence[Section]:
        """See `StrategyPlugin.check`: compiles for the slice, if one is set."""
        if self._slice is None:
            return ()
        from trainer_plugins.strategies.tpu.report import compile_all

        return compile_all(programs, self._slice)

    def why_not_compiled(self) -> str | None:
        """The TPU compiler compiles every step anyway."""
        return "a TPU step is always compiled"

    def why_not_computed_in(self, dtype: str) -> str | None:
        """See `StrategyPlugin.why_not_computed_in`."""
        if dtype != "float16":
            return None
        return (
            "a TPU's 16-bit format is bfloat16, which needs no loss scale. "
            "Set precision = 'mixed_bfloat16'."
        )

    def distribute(self, make_dataset: MakeDataset, *, training: bool) -> Any:
        """See `StrategyPlugin.distribute`; refuses unsuitable data."""
        # Any replica will do: the batches of all come from the same operations.
        dataset = make_dataset(range(1))
        check_input(dataset, remote=self._is_remote)
        if self._slice is not None:
            return iter(dataset)
        return super().distribute(make_dataset, training=training)

    def runner(self, step: Step, *, training: bool) -> GraphLoop:
        """See `StrategyPlugin.runner`."""
        if self._slice is not None:
            return NotHere(step, self.strategy)
        return HostLoop(step, self.strategy, around=_loss_is_said)

    def describe(self) -> dict[str, Any]:
        """See `StrategyPlugin.describe`."""
        described = super().describe() | {"tpu": self._tpu}
        if self._topology is not None:
            # Chips along x, y and z, and cores per chip.
            shape = [int(n) for n in self._topology.mesh_shape]
            described["topology"] = shape
        return described

    def close(self) -> None:
        """Shuts the TPU system down, if it was started."""
        resolver, self._resolver = self._resolver, None
        if resolver is None:
            return
        try:
            tf.tpu.experimental.shutdown_tpu_system(resolver)
        except _NO_TPU as error:
            # This must not hide how the run itself ended.
            logging.warning("The TPU did not shut down: %s", error)

    @property
    def _is_remote(self) -> bool:
        """Whether processes other than this one read the data."""
        if self._slice is not None:
            return self._slice.hosts > 1
        return self._tpu != "local"

    def _start(self) -> tf.distribute.Strategy:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=self._tpu
        )
        # The chips of a TPU VM need no connection to a cluster.
        if self._is_remote:
            tf.config.experimental_connect_to_cluster(resolver)
        self._topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        # Only now: `close` shuts the system down once it has been started.
        self._resolver = resolver
        return tf.distribute.TPUStrategy(resolver)


def _require_free_chips() -> None:
    """Waits for a moment until no other process uses this host's chips.

    Raises:
        UserError: one does.
        StartAgain: one did; TensorFlow looks for chips when it is imported,
            and does not look again.
    """
    found = first = host.holders()
    deadline = time.monotonic() + _RELEASE_SECONDS
    while found and time.monotonic() < deadline:
        time.sleep(1.0)
        found = host.holders()
    if found:
        raise UserError(
            f"This host's TPU is in use by {found[0]}. One process at a time "
            "can use it: wait until that one ends, or end it."
        )
    if first:
        raise StartAgain(f"the TPU was in use by {first[0]}, which has ended")


def _comes_later(error: Exception) -> bool:
    """Whether a TPU that does not start may do so in a while."""
    # The latter is TensorFlow's message for a TPU that is being created.
    return isinstance(error, tf.errors.UnavailableError) or (
        isinstance(error, RuntimeError) and "is not yet ready" in str(error)
    )


def _reason(error: Exception) -> str:
    """The line of TensorFlow's message that names the problem."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    of_graph = ("Graph execution error:", "Detected at node", "<stack traces")
    said = [line for line in lines if line and not line.startswith(of_graph)]
    return said[0] if said else type(error).__name__


@contextlib.contextmanager
def _loss_is_said() -> Iterator[None]:
    """Turns the error of a lost TPU into one that names the cause.

    Raises:
        StartAgain: it was, by preemption or maintenance.
    """
    try:
        yield
    # TensorFlow reports a preempted or restarted TPU in this way.
    except tf.errors.UnavailableError as error:
        reason = error.message.partition("\n")[0]
        raise StartAgain(f"the TPU was lost: {reason}") from error


class HostLoop(GraphLoop):
    """Runs a step n times in a loop on the TPU's host.

    Each step is one program on every core, and returns logs that are summed
    over all cores. The host adds up those of the first core: a second TPU
    program for that would move the results to the host and back each step.
    """

    def trace(self, iterator: Any) -> None:
        """See `GraphLoop.trace`.

        Raises:
            UserError: the step uses operations that a TPU cannot run.
        """
        with layers_in_names():
            super().trace(iterator)
        check_step(self._step.get_concrete_function(iterator).graph)

    def many_steps(
        self, iterator: Any, num_steps: tf.Tensor, carried: tf.Tensor
    ) -> tf.Tensor:
        """The loop of steps, to be traced."""
        packing = self.packing or self.trace_step(iterator)

        def one_more(_: tf.Tensor, sums: tf.Tensor) -> tf.Tensor:
            logs = tf.nest.map_structure(self._first, self._step(iterator))
            return sums + packing.pack(logs)

        sums = repeat(one_more, carried[:, 0], stop=num_steps)
        return sums[:, tf.newaxis]

    def _pack(self, results: Any) -> Any:
        # The host does it, outside of the step, where all is the TPU's.
        return results

    @property
    def _num_rows(self) -> int:
        return 1


class NotHere(GraphLoop):
    """Runs nothing: a check compiles the steps in another way."""

    def trace(self, iterator: Any) -> None:
        """Does nothing: a step for a TPU cannot be traced for a CPU."""
