"""`Recipe`: what a Trainer was given, beside its data and its strategy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.divergence_guard import Guard
from trainer.step.forms import Form
from trainer.step.spec import AddedLosses, StepSpec
from trainer.strategy.checks import (
    as_loss,
    check_added_losses,
    check_dtypes,
    check_steps_of_model,
)
from trainer.strategy.eager_loop import check_eager
from trainer.strategy.given_model import GivenModel, compiled_with
from trainer.strategy.plugin import StrategyPlugin


@dataclasses.dataclass(kw_only=True)
class Recipe:
    """What model, optimizers, metrics and steps are made of.

    Attributes:
        name: of the Trainer's class, for messages.
        overridden: the methods of a step that this class overrides.
        model: returns a new model.
        given: the model, if it was given as an object.
        loss: see `trainer.Trainer`, as all that follow.
    """

    name: str
    overridden: frozenset[str]
    model: Callable[[], keras.Model]
    loss: Any
    loss_weights: Any
    class_weight: dict[int, float] | None
    optimizer: Any
    metrics: Any
    seed: int
    learning_rate: float | None
    precision: str | None
    accumulation_steps: int
    ema_momentum: float | None
    jit_compile: Any
    sync_batch_norm: bool
    added_losses: AddedLosses
    recompute: tuple[str, ...]
    guard: Guard | None
    run_eagerly: bool
    check_numerics: bool
    probe: bool
    given: GivenModel | None = None

    def __post_init__(self) -> None:
        for method in ("train_step", "global_loss"):
            if self.accumulation_steps > 1 and self.has_own(method):
                raise UserError(
                    f"{self.name} has a {method} of its own, whose batch "
                    f"accumulation_steps = {self.accumulation_steps} would "
                    "cut. Leave it at 1."
                )
        self.check_class_weight(self.class_weight)
        self.loss = tf.nest.map_structure(as_loss, self.loss)
        if self.check_numerics and self.jit_compile == "auto":
            self.jit_compile = "graph"
        if self.run_eagerly:
            self._use_eagerly()
        if isinstance(self.model, keras.Model):
            self.given = GivenModel(self.model)
            self.given.check_precision(self.precision)
            self.take_compiled(self.model)
            self.model = self.given

    def has_own(self, method: str) -> bool:
        """Whether research code overrides a method of the step."""
        return method in self.overridden

    @property
    def form(self) -> Form:
        """How steps are compiled until a run chooses."""
        return Form.of(self.jit_compile) or Form.GRAPH

    def check_class_weight(self, weights: dict[int, float] | None) -> None:
        """Checks that weights of classes can be honored.

        Raises:
            UserError: they cannot.
        """
        if weights is not None and self.has_own("global_loss"):
            raise UserError(
                f"{self.name} has a global_loss, to which class_weight cannot "
                "be applied. Weigh the classes there."
            )

    def check_model(self, model: keras.Model, plugin: StrategyPlugin) -> None:
        """Checks the model that was built.

        Raises:
            UserError: it has what cannot be honored.
        """
        check_steps_of_model(
            model,
            own_step=self.has_own("train_step"),
            own_eval_step=self.has_own("eval_step"),
        )
        check_added_losses(self.added_losses, model)
        check_dtypes(plugin, model)

    def take_compiled(
        self, model: keras.Model, plugin: StrategyPlugin | None = None
    ) -> None:
        """Takes what a model is compiled with where nothing else was given.

        Args:
            model: compiled, or not.
            plugin: the strategy, once it is known.

        Raises:
            UserError: it is compiled with what cannot be honored.
        """
        compiled = compiled_with(model)
        if compiled.get("run_eagerly"):
            self._use_eagerly()
            if plugin is not None:
                check_eager(plugin)
        for name in ("optimizer", "metrics"):
            if getattr(self, name) is None:
                setattr(self, name, compiled.get(name))
        if not any(part is not None for part in tf.nest.flatten(self.loss)):
            self.loss = tf.nest.map_structure(as_loss, compiled.get("loss"))
            if self.loss_weights is None:
                self.loss_weights = compiled.get("loss_weights")

    def _use_eagerly(self) -> None:
        if Form.of(self.jit_compile) not in (None, Form.GRAPH):
            raise UserError(
                "run_eagerly runs each operation by itself, but jit_compile = "
                f"{self.jit_compile!r} compiles them. Leave one of them out."
            )
        self.run_eagerly, self.jit_compile = True, "graph"

    def spec(self, **of_call: Any) -> StepSpec:
        """What the steps of a call are made of.

        Args:
            **of_call: the fields of a `StepSpec` that are not in here.
        """
        return StepSpec(
            overridden=self.overridden,
            accumulation_steps=self.accumulation_steps,
            form=self.form,
            may_choose_form=Form.of(self.jit_compile) is None,
            guard=self.guard,
            loss=self.loss,
            loss_weights=self.loss_weights,
            added_losses=self.added_losses,
            run_eagerly=self.run_eagerly,
            check_numerics=self.check_numerics,
            probes=self.probe,
            **of_call,
        )

    def objects(self) -> dict[str, Any]:
        """What was given as an object with variables, by its argument."""
        found = {
            "model": self.given and self.given.model,
            "optimizer": self.optimizer,
        }
        return {
            name: one
            for name, one in found.items()
            if isinstance(one, keras.Model | keras.optimizers.Optimizer)
        }
