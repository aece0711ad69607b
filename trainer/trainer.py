"""The Trainer: a model, its losses and metrics, and the distributed step.

All that research code overrides is in this file; `trainer.python.running` has
the methods that it calls. More than half documents what each argument and
method means.
"""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import keras
import tensorflow as tf
from annotated_types import Gt, Lt

from trainer.checkpoint.stateful import RunState
from trainer.data import Batches, as_batches
from trainer.data.given import GivenData
from trainer.data.rows import take_rows
from trainer.errors import UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.control import Control
from trainer.loop.evaluator import Evaluator
from trainer.loop.goodput import Accounts
from trainer.loop.loop import Loop
from trainer.loop.reporter import Reporter
from trainer.python.brief import brief_errors
from trainer.python.given_model import GivenModel, compiled_with
from trainer.python.history import History
from trainer.python.running import Running
from trainer.step import gradients as grads
from trainer.step import numerics
from trainer.step.checks import check_data, check_losses
from trainer.step.context import step_context
from trainer.step.divergence_guard import Guard
from trainer.step.forms import Form
from trainer.step.gradient_sums import (
    GradientSums,
    Reduced,
    gradient_sums,
    measure,
    reduce_gradients,
)
from trainer.step.logs import StepLogs
from trainer.step.losses import loss_terms
from trainer.step.reductions.all_gather import Gathered, all_gather
from trainer.step.reductions.sums import Average
from trainer.step.spec import OVERRIDABLE, AddedLosses, Parts, StepSpec
from trainer.step.train_step import make_train_step
from trainer.strategy.build import (
    build_model,
    build_parts,
)
from trainer.strategy.checks import (
    as_loss,
    check_added_losses,
    check_against_strategy,
    check_dtypes,
    check_global_loss,
    check_own_train_step,
    check_steps_of_model,
    check_trainable,
)
from trainer.strategy.eager_loop import EagerLoop, check_eager
from trainer.strategy.graph_loop import Runner
from trainer.strategy.optimizers import restart_optimizers
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.registry import (
    check_strategy,
    find_strategy,
    plugin_of,
)
from trainer.values.annotations import (
    JitCompile,
    NotNegative,
    Path,
    Positive,
    Precision,
    Seed,
    Text,
)
from trainer.values.configurable import configurable
from trainer.values.keras_values import (
    ClassWeight,
    Data,
    Loss,
    LossWeights,
    MakeModel,
    Metrics,
    Optimizer,
)

_BATCH_SIZE = 32  # As in Keras.
# What a Trainer keeps once it is built.
_BUILT = ("plugin", "parts", "spec", "train_runner", "evaluator")


@brief_errors(
    *("__init__", "build", "train", "train_and_evaluate", "fit", "evaluate"),
    *("predict", "save", "summary", "memory_report"),
)
@configurable(module="trainer")
class Trainer(Running):
    """Trains and evaluates a Keras model under any strategy.

    The step computes, over the whole global batch and for any number of
    replicas,

        loss = sum_i w_i * l_i / D  +  regularization

    reduces the gradient with one SUM, clips it, and applies it. Research code
    chooses how deep it goes:

    1. Configure only, as `compile` and `fit` are called.

           trainer = Trainer(
               model=lambda: keras.Sequential([keras.layers.Dense(10)]),
               loss=keras.losses.SparseCategoricalCrossentropy(True),
               metrics=["accuracy"],
               data={"train": (x, y), "eval": (x_val, y_val)},
           )
           trainer.train_and_evaluate("3 epochs")

    2. Override `per_example_loss`: any loss that has one value per example.

           class Huber(Trainer):
               def per_example_loss(self, x, y, y_pred):
                   return keras.losses.huber(y, y_pred)

    3. Override `global_loss`: a loss over pairs of examples, or over the
       batch, which sees the outputs of all replicas.

           class Contrastive(Trainer):
               def global_loss(self, x, y, y_pred):
                   return keras.losses.Circle()(y, y_pred)

    4. Override `train_step`: several optimizers, losses over pairs of
       networks. `gradients` and `apply_gradients` scale, reduce and apply.

           class Adversarial(Trainer):
               def train_step(self, batch):
                   with tf.GradientTape(persistent=True) as tape:
                       per_example = self.play(batch)
                       loss = average(
                           tf.reduce_sum(per_example), len(per_example)
                       )
                   for name in ("generator", "critic"):
                       part = self.model.get_layer(name).trainable_variables
                       self.apply_gradients(
                           self.gradients(tape, loss, part),
                           part,
                           optimizer=name,
                       )
                   return {"loss": loss}

    Args:
        model: a function that returns the model, or a model. A model is
            trained itself; under a strategy, whose variables have to be made
            in its scope, a copy of it is, and gives the weights back.
        loss: a Keras loss, its name, or a structure of these that matches the
            model's outputs. Its `reduction` chooses the denominator. One
            loss stands for all outputs.
        loss_weights: what each output's loss is multiplied by, in a list or
            a dict by output.
        class_weight: class number to the weight of its examples in the
            training loss; any other class weighs 1. For a single output
            whose targets are classes or one-hot vectors.
        optimizer: a function that returns a Keras optimizer, an optimizer, a
            name, or a dict of these for your own `train_step`. By default
            that of a compiled model, otherwise Adam. An optimizer in a dict
            whose name is that of a layer of the model is for that layer's
            weights, any other for all weights.
        metrics: Keras metrics, functions that return them, or names, such as
            `["accuracy"]`, or a dict of lists by output. They weigh examples
            by their sample weight. By default those of a compiled model. So
            are `loss` and `loss_weights`.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays, a
            `tf.data.Dataset` of batches, a dict of these by split (`"train"`,
            `"eval"`, and others to evaluate), or a function of `split`; see
            `trainer.data.as_batches`.
        strategy: a strategy plugin, its name, or a `tf.distribute.Strategy`
            of this process.
        batch_size: examples in a global batch, over all replicas and
            micro-batches. By default what a dataset has, otherwise 32.
        seed: for initial weights, shuffling and dropout.
        learning_rate: replaces the optimizer's own.
        data_dir: passed to `data`.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
        accumulation_steps: micro-batches into which a global batch is cut to
            save memory. The result is that of the whole batch, but for
            batch statistics, which see one micro-batch.
        ema_momentum: keeps an exponential moving average of the weights, and
            evaluates and exports with it.
        jit_compile: which form of the step is compiled; see
            `trainer.step.forms.Form`. `"auto"` goes by what the step
            consists of, from step 500 on; `True` is `"xla"`, `False` is
            `"graph"`.
        sync_batch_norm: BatchNormalization takes its statistics over all
            replicas. Without it each replica has its own.
        added_losses: what layers pass to `add_loss`: `"mean"`, a mean over
            the batch, or `"sum"`, a sum over it; or a dict of these by layer.
            By default they are taken for means; with several replicas or
            micro-batches, a loss that is found not to be a mean is refused.
        recompute: names of layers, such as `["block_*"]`, whose outputs are
            computed again for the gradient instead of being kept: less
            memory, more time, the same result.
        guard: what to do when training diverges, see `trainer.Guard`; `None`
            checks nothing.
        run_eagerly: runs steps as Python, operation by operation, so that a
            debugger stops in them; slow, and only for a single replica in
            this process. By default what a model is compiled with.
        check_numerics: ends a run at the first operation of a training step
            that computes what is not finite, and names it; slow, and only
            for the form `"graph"`. See docs/debugging.md.

    Raises:
        UserError: an argument is not valid.
    """

    def __init__(
        self,
        model: MakeModel,
        *,
        loss: Loss = None,
        loss_weights: LossWeights = None,
        class_weight: ClassWeight | None = None,
        optimizer: Optimizer | None = None,
        metrics: Metrics = None,
        data: Data = None,
        strategy: Text | StrategyPlugin | tf.distribute.Strategy = "auto",
        batch_size: Positive | None = None,
        seed: Seed = 0,
        learning_rate: NotNegative | None = None,
        data_dir: Path | None = None,
        precision: Precision | None = None,
        accumulation_steps: Positive = 1,
        ema_momentum: Annotated[float, Gt(0), Lt(1)] | None = None,
        jit_compile: JitCompile = "auto",
        sync_batch_norm: bool = True,
        added_losses: AddedLosses = None,
        recompute: Sequence[Text] = (),
        guard: Guard | None = None,
        run_eagerly: bool = False,
        check_numerics: bool = False,
    ) -> None:
        # Refused here, before a model is built.
        if isinstance(strategy, str):
            check_strategy(strategy)
        if self._has_own("train_step"):
            check_own_train_step(
                type(self).__name__,
                accumulation_steps=accumulation_steps,
                precision=precision,
            )
        if self._has_own("global_loss"):
            check_global_loss(
                type(self).__name__,
                accumulation_steps=accumulation_steps,
                class_weight=class_weight,
            )
        self._given_model: GivenModel | None = None
        if isinstance(model, keras.Model):
            self._given_model = GivenModel(model)
            self._given_model.check_precision(precision)
            model = self._given_model
        self._model_factory = model
        self._factories = {
            "optimizer": optimizer,
            "metrics": metrics,
            "learning_rate": learning_rate,
            "ema_momentum": ema_momentum,
            "sync_batch_norm": sync_batch_norm,
        }
        self.added_losses = added_losses
        self.recompute = tuple(recompute)
        self.guard = guard
        self._data = GivenData.of(data) or data
        self._data_dir = data_dir
        self._strategy = strategy
        self._precision = precision
        self.loss = tf.nest.map_structure(as_loss, loss)
        self.loss_weights = loss_weights
        self.class_weight = self._own_class_weight = class_weight
        size = getattr(self._data, "batch_size", None)
        self.batch_size = batch_size or size or _BATCH_SIZE
        self.seed = seed
        self.accumulation_steps = accumulation_steps
        self.jit_compile = jit_compile
        self.run_eagerly = False
        if run_eagerly:
            self._use_eagerly()
        self.check_numerics = check_numerics
        if check_numerics and jit_compile == "auto":
            self.jit_compile = "graph"
        # Until a run chooses.
        self.compiled_form = Form.of(self.jit_compile) or Form.GRAPH
        # The ids of the variables that the traced steps train.
        self._traced_for: list[int] | None = None
        self.model_dir: str | None = None
        self.control = Control()
        self.accounts = Accounts()
        # Functions, as neither parts nor plugin exists before its first use.
        self.state = RunState(lambda: self.parts, lambda: self.plugin)
        self.loop: Loop | None = None
        # Of an evaluator beside training, which has no loop.
        self.following: Reporter | None = None
        # Those that `evaluate` or `predict` was given, while it works.
        self._called: CallbackList | None = None
        self.history = History()
        self._batches: dict[str, Batches] = {}
        # What builds a model that knows no shapes, and its later copies.
        self._first_batches: Batches | None = None
        self._example: Any = None
        self._checked: weakref.WeakSet[Batches] = weakref.WeakSet()
        if self._given_model is not None:
            self._use_compiled(self._given_model.model)

    # What is built, on first use.

    @functools.cached_property
    def plugin(self) -> StrategyPlugin:
        """The strategy plugin that runs the steps."""
        if isinstance(self._strategy, StrategyPlugin):
            return self._strategy
        if isinstance(self._strategy, tf.distribute.Strategy):
            return plugin_of(self._strategy)
        return find_strategy(self._strategy)

    @functools.cached_property
    def parts(self) -> Parts:
        """Model, optimizers, metrics and state variables."""
        # Before anything is built: a wrong batch_size shows at once.
        check_against_strategy(
            self.plugin,
            batch_size=self.batch_size,
            accumulation_steps=self.accumulation_steps,
            form=self.compiled_form,
        )
        if self.run_eagerly:
            check_eager(self.plugin)
        given = self._given_model
        parts = build_parts(
            self.plugin,
            model=(lambda: given.make(self.plugin))
            if given
            else self._model_factory,
            use_compiled=self._use_compiled,
            seed=self.seed,
            precision=self._precision,
            guard=self.guard,
            own_step=self._has_own("train_step"),
            call_once=self._call_once,
            take_over=given.take_over if given else lambda made: None,
            recompute=self.recompute,
            factories=self._factories,
        )
        if given is not None and not given.model.built:
            # Now, as it cannot be given trained weights otherwise.
            self._call_once(given.model)
            given.give_back(parts.model)
        # Variables of research code, which Keras does not track.
        parts.untracked.offer_attributes(self)
        return parts

    def build(self) -> None:
        """Creates strategy, model and optimizer now instead of on first use.

        Raises:
            UserError: something that was given does not fit.
        """
        _ = self.parts
        check_steps_of_model(
            self.model,
            own_step=self._has_own("train_step"),
            own_eval_step=self._has_own("eval_step"),
        )
        check_added_losses(self.added_losses, self.model)
        check_dtypes(self.plugin, self.model)
        check_losses(self.spec)

    def restart_optimizers(self) -> None:
        """Resets the optimizers to their initial state, for these weights."""
        with self.plugin.scope():
            restart_optimizers(
                self.parts,
                self._factories["optimizer"] or "adam",
                self._factories["learning_rate"],
            )

    def follow_trainable(self) -> None:
        """Lets the next step train what is trainable now.

        Raises:
            UserError: a layer has become trainable since it was built.
        """
        check_trainable(
            self.model, self.parts.trained, own_step=self._has_own("train_step")
        )
        now = [id(variable) for variable in self.model.trainable_variables]
        if self._traced_for not in (None, now):
            # The cached steps were traced for other variables.
            self.__dict__.pop("train_runner", None)
            self.__dict__.pop("evaluator", None)
        self._traced_for = now

    def use_form(self, form: Form, runner: Runner | None = None) -> None:
        """Compiles the step in another form from now on.

        Args:
            form: the form.
            runner: what was traced in this form already.
        """
        if form is not self.compiled_form:
            self.compiled_form = form
            self.__dict__.pop("train_runner", None)
            spec = self.__dict__.get("spec")
            if spec is not None:
                # What has been tried holds for every form.
                self.__dict__["spec"] = dataclasses.replace(spec, form=form)
        if runner is not None:
            self.__dict__["train_runner"] = runner

    def check_still_trainable(self) -> None:
        """Checks that the steps train what they were traced for.

        Raises:
            UserError: a callback has changed what is trainable.
        """
        now = [id(variable) for variable in self.model.trainable_variables]
        if self._traced_for != now:
            raise UserError(
                "A callback has changed which layers are trainable, but the "
                "steps of this call of train were traced before. Change it "
                "between two calls of train, or in the model function."
            )

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self.parts.model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer; the first one if there are several."""
        return next(iter(self.parts.optimizers.values()))

    @property
    def given_objects(self) -> dict[str, Any]:
        """Arguments that are objects with variables, made before the scope."""
        found = {
            "model": self._given_model and self._given_model.model,
            "optimizer": self._factories["optimizer"],
        }
        return {
            name: one
            for name, one in found.items()
            if isinstance(one, keras.Model | keras.optimizers.Optimizer)
        }

    def _has_own(self, method: str) -> bool:
        """Whether a subclass overrides a method of the step."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return self.state.step

    @step.setter
    def step(self, step: int) -> None:
        """Sets it, as restoring a checkpoint does."""
        self.state.step = step

    @property
    def stop_reason(self) -> str | None:
        """Why training ended early, or is about to; `None` if it did not."""
        return self.control.stop_reason

    @property
    def fired_step(self) -> int:
        """The last step at which everything that was due has been called."""
        return self.step if self.loop is None else self.loop.fired_step

    @property
    def evaluated_split(self) -> str:
        """The split whose evaluation is under way; `"eval"` if there is none.

        For callbacks, between `on_test_begin` and `on_test_end`.
        """
        return (self.reporter and self.reporter.evaluating) or "eval"

    @property
    def reporter(self) -> Reporter | None:
        """Reports the evaluations of the run that goes on; `None` without."""
        if self.following is not None:
            return self.following
        goes_on = self.loop is not None and not self.loop.has_ended
        return self.loop.reporter if self.loop and goes_on else None

    @property
    def taken_back(self) -> Sequence[str]:
        """Splits that `fired_step` logged only because it was an earlier end.

        A run that goes on from there has no such logs.
        """
        return () if self.loop is None else self.loop.reporter.taken_back

    def batches(self, split: str) -> Batches:
        """The global batches of a split.

        Args:
            split: `"train"`, `"eval"`, or another that the data has.

        Raises:
            UserError: there is no data, or it is not usable.
        """
        # Kept: counting a dataset of unknown length may take a while.
        if split not in self._batches:
            self._batches[split] = self._make_batches(split)
        return self._batches[split]

    def _make_batches(self, split: str) -> Batches:
        if self._data is None:
            raise UserError(
                f"There is no {split} data: pass Trainer(data=...), or give it "
                "to the call, as in fit(x, y)."
            )
        if isinstance(self._data, GivenData):
            return self._data.batches(
                split,
                batch_size=self.batch_size,
                seed=self.seed,
                drop_remainder=self.plugin.options.static_shapes,
            )
        return as_batches(
            self._data,
            split=split,
            batch_size=self.batch_size,
            seed=self.seed,
            data_dir=self._data_dir,
            drop_remainder=self.plugin.options.static_shapes,
        )

    def check_data(self, batches: Batches) -> None:
        """Checks once that batches fit the model and its losses.

        Raises:
            UserError: they do not.
        """
        if batches not in self._checked:
            check_data(self.spec, batches)
            self._checked.add(batches)

    # What research code overrides.

    def forward(self, x: Any, *, training: bool) -> Any:
        """Calls the model on a replica's inputs."""
        return self.model(x, training=training)

    def per_example_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        """The loss of each example, before weights and division.

        Args:
            x: inputs of a replica's batch.
            y: its targets.
            y_pred: the model's outputs.

        Returns:
            Float of shape `[batch]` or `[batch, ...]`, or output name to
            such a tensor. Masks and sample weights are applied afterwards,
            and the division by the global batch.
        """
        return loss_terms.per_example(self.spec, y, y_pred)

    def global_loss(self, x: Any, y: Any, y_pred: Any) -> tf.Tensor:
        """A loss over the global batch, such as one over pairs of examples.

        Every replica computes it, from the same numbers. It is added to the
        per-example losses, if there are any. It cannot be combined with sample
        weights or micro-batches.

        Args:
            x: inputs of the global batch.
            y: its targets.
            y_pred: the model's outputs for it.

        Returns:
            A float scalar; it is not divided any further.
        """
        raise NotImplementedError

    def train_step(self, batch: Any) -> StepLogs:
        """One optimizer step on one replica.

        Runs in replica context on the replica's piece of the global batch;
        pieces of a short batch may be smaller, or empty.

        Args:
            batch: `x`, `(x, y)`, `(x, y, sample_weight)`, or whatever the
                data yields.

        Returns:
            Name to `Average` (a replica's own sums, not reduced), to a
            scalar (averaged over replicas and steps), or the result of
            `metric_increments`.
        """
        sums, logs = self.gradient_sums(batch)
        reduced = self.reduce_gradients(sums)
        self.apply_gradients(reduced.gradients)
        return logs

    def eval_step(self, batch: Any) -> StepLogs:
        """Measures one replica's batch.

        Arguments and result are as in `train_step`. Under a strategy with
        static shapes the batch is `(x, y, sample_weight)`, whatever the data
        yields: padding has weight 0.
        """
        _, logs = measure(self.spec, batch, training=False)
        return logs

    # What a step is made of; all in replica context.

    def gradient_sums(self, batch: Any) -> tuple[GradientSums, StepLogs]:
        """A replica's sums of loss and gradients, not yet divided.

        Args:
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`.

        Returns:
            The sums, and what the step returns for the batch.
        """
        return gradient_sums(self.spec, batch)

    def reduce_gradients(self, sums: GradientSums) -> Reduced:
        """The gradients of the global loss: one SUM, then the division.

        Args:
            sums: this replica's, over all its micro-batches.

        Returns:
            `gradients`, variable number to gradient, equal on every replica
            and including the regularizers'; and what a guard must know.
        """
        return reduce_gradients(self.spec, sums)

    def gradients(
        self, tape: tf.GradientTape, loss: Average, variables: list[Any]
    ) -> list[grads.Gradient]:
        """The gradient of a global mean.

        Args:
            tape: recorded this replica's part of the loss.
            loss: this replica's sum and count, see `trainer.average`.
            variables: what to differentiate with respect to.

        Returns:
            For each variable the gradient of (sum of totals) / (sum of
            counts) over all replicas, equal on every replica.
        """
        local = tape.gradient(loss.total, [v.value for v in variables])
        # Without examples the local gradient may be NaN, and would spread.
        here = step_context.batch
        if here is not None:
            local, loss = here.or_zeros(local), here.or_nothing(loss)
        if not self.plugin.options.reduces_sparse:
            local = grads.densify(local)
        # Gradients and count in one reduction, then one division.
        total, count = grads.reduce_sum((local, loss.count))
        factor = tf.math.divide_no_nan(1.0, count)
        return [grads.scale(gradient, factor) for gradient in total]

    def all_gather(self, structure: Any) -> Gathered:
        """Gathers the rows of all replicas on each of them, differentiably.

        Args:
            structure: tensors of shape `[rows, ...]`, see
                `trainer.step.reductions.all_gather.all_gather`.

        Returns:
            `values`, of the same structure, and `offset`, the first of this
            replica's rows in them.
        """
        return all_gather(structure)

    def apply_gradients(
        self,
        gradients: list[grads.Gradient] | dict[int, grads.Gradient],
        variables: list[Any] | None = None,
        optimizer: str | None = None,
    ) -> None:
        """Clips reduced gradients as the optimizer says, and applies them.

        Args:
            gradients: one for each variable, equal on every replica.
            variables: defaults to the model's trainable variables.
            optimizer: its name, if there are several.
        """
        variables = variables or self.model.trainable_variables
        if isinstance(gradients, dict):
            gradients = [gradients.get(i) for i in range(len(variables))]
        chosen = (
            self.parts.optimizers[optimizer] if optimizer else self.optimizer
        )
        # Clipping and moments need each row's whole gradient.
        true = grads.rows_once(gradients, dense=self.compiled_form.uses_xla)
        if self.parts.watch is not None:
            self.parts.watch.note(true)
        if not grads.takes_rows_as_they_come(chosen):
            gradients = true
        # All replicas assign the same here, so nothing must be weighed by
        # examples.
        with step_context.within(batch=None):
            chosen.apply(gradients, variables)

    def metric_increments(
        self, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> StepLogs:
        """What a batch adds to each metric; a step returns it."""
        metrics = self.parts.metrics
        return metrics.logs(metrics.calls(y, y_pred, sample_weight))

    # Running.

    def trace_evaluation(self, split: str = "eval") -> None:
        """Builds the graph of a split's evaluation without evaluating."""
        if split == "eval":
            self.evaluator.trace()
        else:
            batches = self.batches(split)
            self._other_evaluations.trace(self.spec, batches)

    def stop(self, reason: str) -> None:
        """Ends training at the next boundary of the host loop."""
        self.control.stop_reason = reason

    def save_soon(self) -> None:
        """Saves a checkpoint at the next boundary; from any thread."""
        self.control.save_requested = True

    def start_again(self, reason: str) -> None:
        """Saves at the next boundary and raises `StartAgain`.

        All processes of the run do so at the same step. From any thread.

        Args:
            reason: such as `"SIGTERM"`.
        """
        self.control.restart_reason = reason

    def learning_rates(self) -> dict[str, float]:
        """The optimizers' present learning rates."""
        rates = {
            # The shortest decimal of this float32: 0.01, not 0.009999999776.
            name: float(str(keras.ops.convert_to_numpy(one.learning_rate)))
            for name, one in self.parts.optimizers.items()
        }
        if len(rates) == 1:
            return {"learning_rate": next(iter(rates.values()))}
        return {f"learning_rate_{name}": rate for name, rate in rates.items()}

    def single_device_model(self) -> keras.Model:
        """A copy of the model outside the strategy, for export.

        It holds the averaged weights if there are any.
        """
        copy = build_model(self._model_factory, self._precision)
        if not copy.built:
            self._call_once(copy)
        copy.set_weights(self.model.get_weights())
        # Copied one by one, not swapped in and out of the model that trains:
        # only the chief may be doing this, and a swap involves all processes.
        if self.parts.ema is not None:
            # Not by what is trainable now, which may be less than at first.
            averages = {
                id(variable): average
                for variable, average in zip(
                    self.parts.trained, self.parts.ema.variables, strict=True
                )
            }
            for own, its in zip(self.model.weights, copy.weights, strict=True):
                if id(own) in averages:
                    its.assign(averages[id(own)].read_value())
        return copy

    @contextlib.contextmanager
    def model_to_save(self) -> Iterator[keras.Model]:
        """The model outside the strategy, with the averaged weights if any.

        A copy, as a file then has neither optimizer nor loss. Keras also
        saves models of which it could make no other: they are saved as they
        are, which only a given model that is trained itself can be.
        """
        try:
            model = self.single_device_model()
        except (UserError, ValueError):
            if self._given_model is None or not self._given_model.is_trained:
                raise
        else:
            yield model
            return
        ema = self.parts.ema
        with ema.swapped_in() if ema else contextlib.nullcontext():
            yield self.model

    # How it works; nothing below is meant to be overridden.

    @functools.cached_property
    def spec(self) -> StepSpec:
        """What the steps are made of."""
        return StepSpec(
            methods=self,
            overridden=frozenset(filter(self._has_own, OVERRIDABLE)),
            parts=self.parts,
            plugin=self.plugin,
            batches=self.batches,
            saves=lambda: self.loop is not None and self.loop.callbacks.save,
            batch_size=self.batch_size,
            accumulation_steps=self.accumulation_steps,
            form=self.compiled_form,
            guard=self.guard,
            loss=self.loss,
            loss_weights=self.loss_weights,
            class_weight=self.class_weight,
            added_losses=self.added_losses,
            run_eagerly=self.run_eagerly,
        )

    @functools.cached_property
    def train_runner(self) -> Runner:
        """The loop of training steps; traced once, however often it runs."""
        step = make_train_step(self.spec)
        if self.check_numerics:
            step = numerics.checked(step, self.spec)
        if self.run_eagerly:
            return EagerLoop(
                step, self.plugin.strategy, needs_graph=self.spec.saves
            )
        if self.compiled_form is Form.XLA_STACK:
            return self.plugin.stack_runner(step)
        return self.plugin.runner(step, training=True)

    def _use_compiled(self, model: keras.Model) -> None:
        """Takes what a model is compiled with where nothing else was given."""
        compiled = compiled_with(model)
        if compiled.get("run_eagerly"):
            self._use_eagerly()
        for name in ("optimizer", "metrics"):
            if self._factories[name] is None:
                self._factories[name] = compiled.get(name)
        if not any(part is not None for part in tf.nest.flatten(self.loss)):
            self.loss = tf.nest.map_structure(as_loss, compiled.get("loss"))
            if self.loss_weights is None:
                self.loss_weights = compiled.get("loss_weights")

    def _use_eagerly(self) -> None:
        """Runs steps as Python from now on.

        Raises:
            UserError: the strategy or the compiled form does not allow it.
        """
        if Form.of(self.jit_compile) not in (None, Form.GRAPH):
            raise UserError(
                f"run_eagerly runs each operation by itself, but jit_compile = "
                f"{self.jit_compile!r} compiles them. Leave one of them out."
            )
        if "plugin" in vars(self):
            check_eager(self.plugin)
        self.run_eagerly, self.jit_compile = True, "graph"

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """Measures the eval split; traced once, however often it runs."""
        return Evaluator(
            self.spec,
            self.plugin,
            has_to_leave=self._has_to_leave,
            batch_events=self._batch_events,
        )

    def _batch_events(self) -> Callable[..., None] | None:
        """What calls callbacks at each batch of an evaluation, if any do."""
        if self._called is not None:
            return self._called.batch_events
        return None if self.reporter is None else self.reporter.batch_events()

    def _has_to_leave(self) -> bool:
        """Whether the run's evaluation that is under way is abandoned."""
        return self.reporter is not None and self.reporter.has_to_leave()

    def _call_once(self, model: keras.Model) -> None:
        """Calls a model that is built by its first batch."""
        if self._example is None:
            # What the Trainer is called with may be the only data.
            batches = self._first_batches or self.batches(self._any_split())
            one = batches.pieces(
                start=0, replicas=range(1), num_replicas=1, micro=1
            )
            x, _, _ = keras.utils.unpack_x_y_sample_weight(next(iter(one)))
            # One example will do for the shapes.
            self._example = take_rows(x, 0, 1)
        model(self._example)

    def _any_split(self) -> str:
        """The split that training reads, or else one that is there."""
        splits = list(getattr(self._data, "splits", ()))
        return "train" if "train" in splits or not splits else splits[0]
