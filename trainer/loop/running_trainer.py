"""`RunningTrainer`: the part of a Trainer that loop and callbacks may use."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from trainer.checkpoint.stateful import RunState
from trainer.data.batches import Batches
from trainer.loop.control import Control
from trainer.loop.goodput import Accounts
from trainer.loop.logged import Kind
from trainer.step.forms import Form
from trainer.step.spec import Parts, StepSpec
from trainer.strategy.graph_loop import Runner
from trainer.strategy.plugin import StrategyPlugin
from trainer.values.annotations import JitCompile, Text


class RunningTrainer(Protocol):
    """The part of `trainer.Trainer` that a run needs.

    Attributes:
        step: the optimizer steps that are done.
        model_dir: where the run lives; `None` writes nothing.
        batch_size: examples in a global batch.
        accumulation_steps: micro-batches in a global batch.
        recompute: names of layers that are computed twice.
        control: what is requested of the run.
        accounts: where its time goes.
        state: what its checkpoints hold.
        loop: the host loop, once there is one.
        following: reports evaluations where there is no loop.
        jit_compile: which form of the step was asked for.
        compiled_form: which one it has.
    """

    step: int
    model_dir: str | None
    batch_size: int
    accumulation_steps: int
    recompute: tuple[str, ...]
    control: Control
    accounts: Accounts
    state: RunState
    loop: Any
    following: Any
    jit_compile: JitCompile
    compiled_form: Form

    @property
    def plugin(self) -> StrategyPlugin:
        """The strategy plugin that runs the steps."""

    @property
    def parts(self) -> Parts:
        """Model, optimizers, metrics and state variables."""

    @property
    def spec(self) -> StepSpec:
        """What the steps are made of."""

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer; the first one if there are several."""

    @property
    def train_runner(self) -> Runner:
        """The loop of training steps."""

    @property
    def stop_reason(self) -> str | None:
        """Why training ends early."""

    @property
    def fired_step(self) -> int:
        """The last step at which everything that was due has been called."""

    @property
    def evaluated_split(self) -> str:
        """The split whose evaluation is under way."""

    @property
    def taken_back(self) -> Sequence[str]:
        """Splits whose logs of `fired_step` only an earlier end caused."""

    def build(self) -> None:
        """Creates strategy, model and optimizer."""

    def batches(self, split: str) -> Batches:
        """The global batches of a split."""

    def check_data(self, batches: Batches) -> None:
        """Checks that batches fit the model and its losses."""

    def follow_trainable(self) -> None:
        """Lets the next step train what is trainable now."""

    def use_form(self, form: Form, runner: Runner | None = None) -> None:
        """Compiles the step in another form from now on."""

    def check_still_trainable(self) -> None:
        """Checks that the steps train what they were traced for."""

    def evaluate(
        self, *, split: str = "eval", steps: int | None = None
    ) -> dict[str, float]:
        """Measures a split."""

    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> Any:
        """The model's outputs, with the averaged weights if there are any."""

    def describe(self) -> str:
        """Strategy, devices, parameters, batch and precision, in one line."""

    def trace_evaluation(self, split: str = "eval") -> None:
        """Builds the graph of a split's evaluation without evaluating."""

    def learning_rates(self) -> dict[str, float]:
        """The optimizers' present learning rates."""

    def single_device_model(self) -> keras.Model:
        """A copy of the model outside the strategy, for export."""

    def model_to_save(self) -> AbstractContextManager[keras.Model]:
        """The model outside the strategy, to be written."""

    def log(
        self,
        name: str,
        value: Any,
        *,
        kind: Kind | None = None,
        split: Text | None = None,
        sample_rate: int | None = None,
    ) -> None:
        """Logs a value, from a callback or a step."""

    def stop(self, reason: str) -> None:
        """Ends training at the next boundary of the host loop."""

    def save_soon(self) -> None:
        """Saves a checkpoint at the next boundary; from any thread."""

    def start_again(self, reason: str) -> None:
        """Saves at the next boundary and raises `StartAgain`."""
