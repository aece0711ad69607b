"""`Recipe`: what a Trainer was given, beside its data and its strategy."""

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import keras
import tensorflow as tf
from annotated_types import Gt, Lt

from trainer.errors import UserError
from trainer.step.divergence_guard import Guard
from trainer.step.forms import Form
from trainer.step.keras.private import (
    all_layers,
    compile_arguments,
    lambda_options,
    native,
)
from trainer.step.spec import AddedLosses, StepSpec
from trainer.strategy.checks import (
    as_loss,
    check_added_losses,
    check_dtypes,
    check_eager,
    check_steps_of_model,
)
from trainer.strategy.plugin import StrategyPlugin
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


@dataclasses.dataclass(kw_only=True)
class Recipe:
    """What model, optimizers, metrics and steps are made of.

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
    given: "GivenModel | None" = dataclasses.field(default=None, init=False)
    plain_metrics: Any = dataclasses.field(default=None, init=False)
    # Arguments of the Trainer, and declared here only.
    loss: Loss = None
    loss_weights: LossWeights = None
    class_weight: ClassWeight | None = None
    optimizer: Optimizer | None = None
    metrics: Metrics = None
    seed: Seed = 0
    learning_rate: NotNegative | None = None
    precision: Precision | None = None
    accumulation_steps: Positive = 1
    ema_momentum: Annotated[float, Gt(0), Lt(1)] | None = None
    jit_compile: JitCompile = "auto"
    sync_batch_norm: bool = True
    added_losses: AddedLosses = None
    recompute: Sequence[Text] = ()
    guard: Guard | None = None
    run_eagerly: bool = False
    check_numerics: bool = False
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
        if self.optimizer is None:
            self.optimizer = compiled.get("optimizer")
        if self.metrics is None:
            self.metrics = compiled.get("weighted_metrics")
            self.plain_metrics = compiled.get("metrics")
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
        known = {field.name for field in dataclasses.fields(StepSpec)}
        ours = {n: value for n, value in vars(self).items() if n in known}
        may_choose = Form.of(self.jit_compile) is None
        return StepSpec(
            **{**ours, **of_call}, form=self.form, may_choose_form=may_choose
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


class GivenModel:
    """A `keras.Model` from which a Trainer makes its own, and its weights.

    Without a `tf.distribute` strategy it is trained itself. A strategy's
    variables must be made in its scope: there a copy is trained, and its
    weights are put back into the given model after each call.

    Args:
        model: built or not, compiled or not.

    Attributes:
        is_trained: whether it is trained itself.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.is_trained = False
        # What the copy has been given, or has given back.
        self._known: tuple[Any, ...] | None = None

    def __call__(self) -> keras.Model:
        """A new model of the same configuration, with weights of its own.

        Raises:
            UserError: the model cannot be made again from its configuration.
        """
        return copy_of(self.model)

    def make(self, plugin: StrategyPlugin) -> keras.Model:
        """The model that is trained under a strategy."""
        with plugin.strategy.scope():
            is_plain = not tf.distribute.has_strategy()
        self.is_trained = is_plain and not any(
            hasattr(native(v), "distribute_strategy")
            for v in self.model.variables
        )
        return self.model if self.is_trained else self()

    def take_over(self, made: keras.Model) -> None:
        """Gives a copy, which is built, weights and `trainable` flags.

        Only if the user has changed them since the last call.

        Raises:
            UserError: the given model has other layers or weights by now.
        """
        if self.is_trained or not self.model.built:
            return
        now = self._state()
        if now == self._known:
            return
        layers = list(all_layers(self.model)), list(all_layers(made))
        shapes = [
            [tuple(v.shape) for v in m.weights] for m in (self.model, made)
        ]
        if len(layers[0]) != len(layers[1]) or shapes[0] != shapes[1]:
            raise UserError(
                f"The model {self.model.name!r} has other layers or weights "
                "than the copy of it that is trained in the strategy's scope. "
                "If you have changed it, make a new Trainer; otherwise pass a "
                "function that makes the model: Trainer(model=lambda: ...)."
            )
        # From the outside in, as a layer's flag sets those of its own layers.
        for own, its in zip(*layers, strict=True):
            if its.trainable != own.trainable:
                its.trainable = own.trainable
        made.set_weights(self.model.get_weights())
        self._known = now

    def give_back(self, trained: keras.Model) -> None:
        """Puts the trained weights into the given model, which is built."""
        if not self.is_trained:
            self.model.set_weights(trained.get_weights())
            self._known = self._state()

    def _state(self) -> tuple[Any, ...]:
        """What tells whether weights or flags have changed."""
        digest = hashlib.blake2b()
        for weight in self.model.get_weights():
            digest.update(weight.tobytes())
        flags = [layer.trainable for layer in all_layers(self.model)]
        return digest.digest(), flags

    def check_precision(self, precision: str | None) -> None:
        """Checks that the model has the precision that is asked for.

        Raises:
            UserError: its layers were made with another one.
        """
        own = self.model.dtype_policy.name
        if precision not in (None, own):
            raise UserError(
                f"precision = {precision!r} comes too late: the layers of the "
                f"model have been made with {own!r}. Pass a function that "
                "makes the model, or call keras.config.set_dtype_policy "
                "before you make it."
            )


def compiled_with(model: keras.Model) -> dict[str, Any]:
    """What a model was compiled with, as arguments of a Trainer.

    Returns:
        Those of `optimizer`, `loss`, `loss_weights`, `metrics`,
        `weighted_metrics` and `run_eagerly` that were given to `compile`;
        empty for a model that is not compiled.
    """
    given = compile_arguments(model)
    names = (
        *("optimizer", "loss", "loss_weights", "metrics"),
        *("weighted_metrics", "run_eagerly"),
    )
    found = {name: given.get(name) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def copy_of(model: keras.Model) -> keras.Model:
    """A new model of the same configuration, with weights of its own.

    It is not compiled. Sequential and Functional models can be copied whatever
    their layers are; a class of the user's own must be one that its
    `get_config` describes, or whose constructor takes nothing.

    Raises:
        UserError: it cannot be made again from its configuration.
    """
    kind = type(model)
    # By name, as a layer may hold layers that are not registered with Keras.
    classes = {type(one).__name__: type(one) for one in all_layers(model)}
    try:
        with keras.saving.custom_object_scope(classes), _not_compiled(model):
            # Sequential and Functional, and no subclass of them.
            if kind.__module__.partition(".")[0] == "keras":
                return keras.models.clone_model(
                    model, clone_function=_copy_of_layer, recursive=True
                )
            return _copy_of_layer(model)
    # A configuration is user code, which can fail in any way.
    except Exception as error:
        raise UserError(
            f"A copy of the {kind.__name__} {model.name!r} is needed in the "
            "strategy's scope, but it cannot be made from get_config "
            f"({type(error).__name__}). Pass a function that makes the model: "
            "Trainer(model=lambda: ...)."
        ) from None


def _copy_of_layer(layer: keras.Layer) -> keras.Layer:
    kind = type(layer)
    if kind is keras.layers.Lambda:
        return kind(**lambda_options(layer))
    # Keras gives any constructor a name and a dtype, and this takes neither.
    is_model = isinstance(layer, keras.Model)
    if is_model and not inspect.signature(kind).parameters:
        return kind()
    return kind.from_config(layer.get_config())


@contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Hides that models are compiled, as Keras would compile their copies."""
    compiled = [
        one for one in all_layers(model) if getattr(one, "compiled", False)
    ]
    for one in compiled:
        one.compiled = False
    try:
        yield
    finally:
        for one in compiled:
            one.compiled = True
