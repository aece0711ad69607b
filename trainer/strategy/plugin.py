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
from typing import Any, ClassVar

import tensorflow as tf

from trainer.runtime import signals
from trainer.runtime.report import Section
from trainer.runtime.tensorflow_private import untuned_devices
from trainer.step.forms import StrategyOptions
from trainer.step.keras.variables import portable_variables
from trainer.step.programs import Programs
from trainer.strategy.graph_loop import GraphLoop, StackLoop, Step
from trainer.values.configurable import ShowsArguments

# See `trainer.data.feeder`: returns the batches of replicas for a
# range of replicas, in the order (step, micro-batch, replica).
MakeDataset = Callable[..., tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class Detection:
    """The devices or peers that a plugin found on this machine.

    Attributes:
        rank: `--strategy=auto` takes the plugin with the highest rank.
        found: what was found, for the log and `run.json`.
    """

    rank: int
    found: str


class StrategyPlugin(ShowsArguments, abc.ABC):
    """A `tf.distribute` strategy and how a run uses it.

    Subclasses set `name`, implement `create`, and override what differs from
    an in-process strategy. Their constructor's keyword arguments are their
    gin parameters.

    Attributes:
        name: the value for `--strategy=`.
        facts: values that must be equal in all processes before they start,
            such as the configuration's hash; set before `create`.
        options: which forms of a step it allows.
        takes_over: the class of strategies made by the user under which it
            runs steps. It is then made without arguments, and `create` is not
            called.
    """

    name: ClassVar[str] = ""
    takes_over: ClassVar[type | None] = None
    options: StrategyOptions = StrategyOptions()
    # Every plugin class by its name: a class adds itself when it is defined.
    known: ClassVar[dict[str, "type[StrategyPlugin]"]] = {}
    facts: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            StrategyPlugin.known[cls.name] = cls

    @classmethod
    def detect(cls) -> Detection | None:
        """Returns what this plugin could use on this machine, or `None`."""
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
        """Whether this process is outside of the cluster and only evaluates.

        It then has its own strategy, without peers, and is the chief of it.
        """
        return False

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Which flags are set in any process of the run.

        Decisions that a process makes by its own clock or signals go through
        here, so that all processes do the same at the same step.

        Args:
            flags: the same number in all processes.
        """
        return list(flags)

    def any_process(self, flag: bool) -> bool:
        """Whether a flag is set in any process of the run; see `any_of`."""
        return self.any_of([flag])[0]

    def check_alike(self, facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Compares values that must be equal in all processes of the run.

        Args:
            facts: JSON values by name, such as the step.

        Raises:
            UserError: they differ; the message names the values and the
                process that differs.
        """

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only one that trains."""
        return True

    def why_start_again(self) -> str | None:
        """Why the run should save and be started again; `None` if not.

        The loop calls it after each host loop. A reason is, for example, that
        a worker has come back.
        """
        return None

    @property
    def why_only_checked(self) -> str | None:
        """Why a run can be checked here and not made; `None` if it can.

        The steps of such a check are not run.
        """
        return None

    def check(self, programs: Programs) -> Sequence[Section]:
        """Returns what this strategy finds out about a run in a check.

        Args:
            programs: the programs that a replica would run.

        Returns:
            Sections of the report, in addition to those of every check.

        Raises:
            UserError: the run would not start, or fail.
        """
        return ()

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
            The reason, with the dtype to set instead.
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

    def distribute(self, make_dataset: MakeDataset, *, training: bool) -> Any:
        """Makes the iterator that feeds each replica its batches.

        Args:
            make_dataset: see `MakeDataset`; its datasets are endless.
            training: whether they are for training or for evaluation.
        """

        def per_pipeline(context: tf.distribute.InputContext) -> Any:
            # Each host's pipeline feeds its own replicas, in the order of their
            # ids.
            share = context.num_replicas_in_sync // context.num_input_pipelines
            first = context.input_pipeline_id * share
            return make_dataset(range(first, first + share))

        with untuned_devices():
            return iter(
                self.strategy.distribute_datasets_from_function(per_pipeline)
            )

    def runner(self, step: Step, *, training: bool) -> GraphLoop:
        """Makes the loop that runs many steps in one call."""
        return GraphLoop(step, self.strategy)

    def stack_runner(self, step: Step) -> StackLoop:
        """Makes the loop that runs a step over stacks of batches.

        It is one program. Called only if `StrategyOptions.takes_stacks` is set.
        """
        return StackLoop(step, self.strategy, self.devices()[0])

    def serve(self) -> bool:
        """Serves other tasks if that is this process's role in a cluster.

        Returns:
            Whether it did; the run has then ended for this process.
        """
        return False

    def describe(self) -> dict[str, Any]:
        """Returns the entries of `run.json` about devices and cluster."""
        return {
            "strategy": self.name,
            "replicas": self.num_replicas,
            "devices": self.devices(),
        }

    def devices(self) -> list[str]:
        """The devices of this process's replicas."""
        return [str(d) for d in self.strategy.extended.worker_devices]

    def finish(self) -> None:  # noqa: B027 - most have no peers to wait for
        """Called once, when the run has ended without an error."""

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Releases devices and peers. Called once, on every exit."""
