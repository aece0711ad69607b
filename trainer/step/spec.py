"""The spec of a step: the methods, variables and options that it needs."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import keras
import tensorflow as tf

from trainer.data.batches import Batches
from trainer.step.divergence_guard import Guard, GuardState
from trainer.step.ema import MovingAverage
from trainer.step.forms import Form, StrategyOptions
from trainer.step.keras.untracked import Untracked
from trainer.step.lookups import Lookups
from trainer.step.loss_scale import LossScale
from trainer.step.metrics.metric_set import MetricSet
from trainer.step.rng import StepRandomness

# Whether layers add means or sums: all of them, or by layer; see `Trainer`.
AddedLosses: TypeAlias = (
    Literal["mean", "sum"] | dict[str, Literal["mean", "sum"]] | None
)
# What research code may override; the other methods of a step call these.
OVERRIDABLE = (
    "forward",
    "per_example_loss",
    "global_loss",
    "train_step",
    "eval_step",
)


class StepStrategy(Protocol):
    """The part of a strategy plugin that a step needs."""

    name: ClassVar[str]

    @property
    def options(self) -> StrategyOptions:
        """Which forms of a step it allows."""

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """TensorFlow's own object."""

    @property
    def num_replicas(self) -> int:
        """How many replicas share one global batch."""

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only one that trains."""

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Which flags are set in any process of the run."""

    def scope(self) -> AbstractContextManager[None]:
        """The context in which every variable of a run is created."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything of a run that lives in the strategy's scope.

    Attributes:
        model: the built model, compiled with the first optimizer.
        optimizers: by name; a single one is named `"optimizer"`.
        metrics: what is measured.
        trained: the variables that are trainable when the model is built.
        step: int64 scalar variable, the optimizer steps that are done.
        randomness: gives each replica its random numbers.
        loss_scale: set where a layer computes in float16.
        ema: set where averaged weights are wanted.
        guard: its state; set where there is a guard.
        untracked: what steps leave that no checkpoint holds.
        decays: see `NotedVariables`.
    """

    model: keras.Model
    optimizers: dict[str, keras.optimizers.Optimizer]
    metrics: MetricSet
    trained: list[Any]
    step: tf.Variable
    randomness: StepRandomness
    loss_scale: LossScale | None
    ema: MovingAverage | None
    guard: GuardState | None
    untracked: Untracked
    decays: dict[int, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSpec:
    """The methods, the state and the options of a run's steps.

    Attributes:
        methods: what a step calls: a `trainer.step.methods.BaseStep`, which
            reads this spec.
        overridden: which of the methods are research code's own.
        parts: the variables, and what is made of them.
        plugin: the strategy.
        batches: gives the global batches of a split.
        saves: whether the present run saves checkpoints.
        batch_size: see `trainer.Trainer`, as all that follow.
        accumulation_steps: see `trainer.Trainer`.
        form: how the step is compiled.
        may_choose_form: whether the run chooses it.
        guard: see `trainer.Trainer`.
        loss: Keras losses.
        loss_weights: see `trainer.Trainer`.
        class_weight: see `trainer.Trainer`.
        added_losses: see `trainer.Trainer`.
        run_eagerly: whether steps run as Python.
        probe: whether the probe tries the step.
        tried: for which steps it has done so.
        lookups: those of the training step, once it is traced.
    """

    methods: Any
    overridden: frozenset[str]
    parts: Parts
    plugin: StepStrategy
    batches: Callable[[str], Batches]
    saves: Callable[[], bool]
    batch_size: int
    accumulation_steps: int
    form: Form
    may_choose_form: bool
    guard: Guard | None
    loss: Any
    loss_weights: Any
    class_weight: dict[int, float] | None
    added_losses: AddedLosses
    run_eagerly: bool = False
    probe: bool = True
    tried: set[str] = dataclasses.field(default_factory=set)
    lookups: Lookups = dataclasses.field(default_factory=Lookups)

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self.parts.model

    @property
    def options(self) -> StrategyOptions:
        """The forms of a step that the strategy allows."""
        return self.plugin.options

    def is_for_xla(self, *, training: bool) -> bool:
        """Whether XLA compiles a step."""
        # Of a TPU's program there is no other form.
        always = self.options.loops_on_replicas
        return always or (training and self.form.uses_xla)

    def bind(self) -> None:
        """Lets the methods read this spec: it is that of what is traced now."""
        self.methods._spec = self

    def has_own(self, method: str) -> bool:
        """Whether research code has overridden a method."""
        return method in self.overridden

    def is_whole(self, *, training: bool) -> bool:
        """Whether every step sees its global batch whole."""
        micro = self.accumulation_steps if training else 1
        return self.plugin.num_replicas * micro == 1
