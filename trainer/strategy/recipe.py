"""`Recipe`: a Trainer's arguments, except its data and its strategy."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

import keras
import tensorflow as tf
from annotated_types import Gt, Lt

from trainer.errors import UserError
from trainer.step.divergence_guard import Guard
from trainer.step.forms import Form
from trainer.step.keras.private import compiled_with, left_by_compile
from trainer.step.spec import AddedLosses, StepSpec
from trainer.strategy.checks import as_loss
from trainer.strategy.given import GivenModel, check_precision
from trainer.values.annotations import (
    JitCompile,
    NotNegative,
    Positive,
    Precision,
    Seed,
    Text,
)
from trainer.values.keras_values import (
    ClassWeight,
    Loss,
    LossWeights,
    MakeModel,
    Metrics,
    Optimizer,
)

# What a model's `compile` may say in the Trainer's place.
_COMPILED = (
    *("optimizer", "loss", "loss_weights", "metrics", "plain_metrics"),
    *("run_eagerly", "jit_compile"),
)


@dataclasses.dataclass(kw_only=True)
class Recipe:
    """The arguments that define model, optimizers, metrics and steps.

    Attributes:
        name: of the Trainer's class, for messages.
        overridden: the methods of a step that this class overrides.
        model: returns a new model.
        given: the model, if it was given as an object.
        plain_metrics: those of a compiled model that Keras does not weigh.
        loss: see `trainer.Trainer`, as all that follow.
    """

    name: str
    overridden: frozenset[str]
    model: MakeModel
    given: GivenModel | None = dataclasses.field(default=None, init=False)
    plain_metrics: Any = dataclasses.field(default=None, init=False)
    # Arguments of the Trainer, and declared here only.
    loss: Loss = None
    optimizer: Optimizer | None = None
    metrics: Metrics = None
    learning_rate: NotNegative | None = None
    seed: Seed = 0
    loss_weights: LossWeights = None
    class_weight: ClassWeight | None = None
    precision: Precision | None = None
    accumulation_steps: Positive = 1
    ema_momentum: Annotated[float, Gt(0), Lt(1)] | None = None
    jit_compile: JitCompile = "auto"
    sync_batch_norm: bool = True
    added_losses: AddedLosses = None
    recompute: Sequence[Text] = ()
    guard: Guard | None = None
    run_eagerly: bool = False
    probe: bool = True

    @classmethod
    def arguments(cls) -> dict[str, tuple[Any, Any]]:
        """Annotation and default of each argument of the Trainer in here."""
        hints = get_type_hints(cls, include_extras=True)
        return {
            field.name: (hints[field.name], field.default)
            for field in dataclasses.fields(cls)
            if field.init and field.default is not dataclasses.MISSING
        }

    def __post_init__(self) -> None:
        for method in ("train_step", "global_loss"):
            if self.accumulation_steps > 1 and self.has_own(method):
                raise UserError(
                    f"{self.name} has a {method} of its own, whose batch "
                    f"accumulation_steps = {self.accumulation_steps} would "
                    "cut. Leave it at 1."
                )
        if self.guard is not None and self.has_own("train_step"):
            raise UserError(
                f"{self.name} has a train_step of its own, whose update a "
                "guard cannot hold back. Check the loss in it, as by "
                "tf.debugging.assert_all_finite."
            )
        self.check_class_weight(self.class_weight)
        self.loss = tf.nest.map_structure(as_loss, self.loss)
        if self.run_eagerly:
            self._use_eagerly()
        # Of the Trainer itself, whatever a model is compiled with.
        self._own = {name: getattr(self, name) for name in _COMPILED}
        if isinstance(self.model, keras.Model):
            check_precision(self.model, self.precision)
            self.given = GivenModel(self.model)
            self.take_compiled(self.model)
            self.model = self.given

    def has_own(self, method: str) -> bool:
        """Whether research code overrides a method of the step."""
        return method in self.overridden

    @property
    def form(self) -> Form:
        """How steps are compiled until a run chooses."""
        return Form.of(self.jit_compile) or Form.GRAPH

    @property
    def has_compiled_optimizer(self) -> bool:
        """Whether the optimizer is the one that the model is compiled with."""
        return self.optimizer is not self._own["optimizer"]

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

    def is_compiled_again(self) -> bool:
        """Takes a given model's new `compile` arguments; whether there are any.

        Raises:
            UserError: it is compiled with what cannot be honored.
        """
        if self.given is None:
            return False
        mark, _ = left_by_compile(self.given.model)
        if mark is self._mark:
            return False
        self.take_compiled(self.given.model)
        return True

    def take_compiled(self, model: keras.Model) -> None:
        """Takes what a model is compiled with where nothing else was given.

        Args:
            model: compiled, or not.

        Raises:
            UserError: it is compiled with what cannot be honored.
        """
        for name, own in self._own.items():
            setattr(self, name, own)
        self._mark, _ = left_by_compile(model)
        compiled = compiled_with(model)
        if compiled.get("run_eagerly"):
            self._use_eagerly()
        if self.optimizer is None:
            self.optimizer = compiled.get("optimizer")
        if self.metrics is None:
            self.metrics = compiled.get("weighted_metrics")
            self.plain_metrics = compiled.get("metrics")
        if not any(part is not None for part in tf.nest.flatten(self.loss)):
            self.loss = tf.nest.map_structure(as_loss, compiled.get("loss"))
            if self.loss_weights is None:
                self.loss_weights = compiled.get("loss_weights")
        elif self.loss_weights is None and "loss_weights" in compiled:
            raise UserError(
                "The model is compiled with loss_weights, which belong to the "
                "loss that it is compiled with, and the Trainer has a loss of "
                "its own. Pass Trainer(loss_weights=...), too, or leave the "
                "loss to compile."
            )

    def _use_eagerly(self) -> None:
        if Form.of(self.jit_compile) not in (None, Form.GRAPH):
            raise UserError(
                "run_eagerly runs each operation by itself, but jit_compile = "
                f"{self.jit_compile!r} compiles them. Leave one of them out."
            )
        self.run_eagerly, self.jit_compile = True, "graph"

    def spec(self, **of_call: Any) -> StepSpec:
        """Returns the specification of the steps of a call.

        Args:
            **of_call: the fields of a `StepSpec` that are not in here.
        """
        known = {field.name for field in dataclasses.fields(StepSpec)}
        ours = {n: value for n, value in vars(self).items() if n in known}
        may_choose = Form.of(self.jit_compile) is None
        return StepSpec(
            **{**ours, **of_call}, form=self.form, may_choose_form=may_choose
        )
