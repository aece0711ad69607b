"""The Trainer: a model, its losses and metrics, and calls that train it.

Research code overrides the methods of a step, which are in
`trainer.step.methods`. More than half of this file documents arguments.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import keras
import tensorflow as tf
from annotated_types import Ge, Lt

from trainer.data.batches import Batches
from trainer.loop.built import Built
from trainer.loop.callback_list import CallbackList
from trainer.loop.goodput import Accounts
from trainer.loop.logged import Kind, check_words, numbers_of
from trainer.loop.loop import Loop
from trainer.loop.run import Run, outside_of_a_run
from trainer.loop.schedule import FitEpochs
from trainer.python import fit as fitting
from trainer.python.brief import brief_errors
from trainer.python.callbacks import as_callbacks, of_training
from trainer.python.history import History, print_values
from trainer.python.predict import predict
from trainer.python.saving import save_model
from trainer.python.shown import Shown
from trainer.python.splits import Splits
from trainer.python.tables import Values
from trainer.run_options import RunOptions, taking, with_keywords
from trainer.step.measuring import log_in_step
from trainer.step.methods import BaseStep
from trainer.step.spec import OVERRIDABLE, StepSpec
from trainer.strategy.checks import check_against_strategy
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.recipe import Recipe
from trainer.strategy.registry import check_strategy, find_strategy
from trainer.values.annotations import Natural, Path, Positive, Text, Verbosity
from trainer.values.configurable import checked, configurable
from trainer.values.keras_values import ClassWeight, Data, MakeModel
from trainer.values.periods import Length


@brief_errors(
    *("__init__", "build", "train", "train_and_evaluate", "fit", "evaluate"),
    *("predict", "save", "summary"),
)
@configurable(module="trainer")
class Trainer(Shown, BaseStep):
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
                def global_loss(self, y, y_pred):
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
        model: a function that returns the model, or a model. On one device,
            the model itself is trained. Under a strategy, whose variables
            have to be created in its scope, a copy with everything that the
            model holds is trained, and gives its weights back. You may call
            `compile` again between two calls.
        loss: a Keras loss, its name, or a structure of these that matches the
            model's outputs. Its `reduction` chooses the denominator. One
            loss applies to all outputs.
        optimizer: a function that returns a Keras optimizer, an optimizer, a
            name, or a dict of these for your own `train_step`. By default
            that of a compiled model, otherwise Adam. In a dict, an optimizer
            with the name of a layer is for the weights of that layer, any
            other for all weights. A learning rate that is set on a given
            optimizer counts from the next call on.
        metrics: Keras metrics, functions that return them, names such as
            `["accuracy"]`, or a dict of lists by output. They weigh examples
            by their sample weight. By default those of a compiled model.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays, a
            `tf.data.Dataset` of batches, a dict of these by split (`"train"`,
            `"eval"`, and others to evaluate), or a function of `split`, which
            is what a gin file names.
        batch_size: examples in a global batch, over all replicas and
            micro-batches. By default that of a dataset, otherwise 32.
        strategy: a strategy plugin, its name, or a `tf.distribute.Strategy`
            of this process. A gin file sets `run.strategy` instead.
        data_dir: where the data is; passed to the function `data`, if set.
        learning_rate: replaces the optimizer's learning rate.
        seed: the seed of initial weights, shuffling and dropout.
        loss_weights: the factor of each output's loss, in a list or a dict by
            output.
        class_weight: a dict from class number to the weight of its examples
            in the training loss; any other class has weight 1. For a single
            output whose targets are classes or one-hot vectors.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`; `None`
            is Keras' global setting.
        accumulation_steps: micro-batches into which a global batch is cut to
            save memory. The result is that of the whole batch, except for
            batch statistics, which see one micro-batch.
        ema_momentum: the momentum of an exponential moving average of the
            weights, which evaluations and exports use; `None` keeps none.
        jit_compile: how the step is compiled. `"auto"` decides by the
            operations of the step, from step 500 on; `True` is `"xla"`,
            `False` is `"graph"`.
        sync_batch_norm: BatchNormalization takes its statistics over all
            replicas. Otherwise, each replica has its own.
        added_losses: how to combine the values that layers pass to
            `add_loss`: `"mean"`, `"sum"`, or a dict of these by layer. By
            default they are means over the batch; with several replicas or
            micro-batches, a value that is found not to be a mean is rejected.
        recompute: names of layers, such as `["block_*"]`, whose outputs are
            computed again for the gradient instead of being kept: less
            memory, more time, the same result.
        guard: checks each step for a loss or gradient that is not finite or
            too large, see `trainer.Guard`; `None` checks nothing.
        run_eagerly: runs steps as Python, operation by operation, so that a
            debugger can stop in them; slow, and only for a single replica in
            this process.
        probe: whether steps that cut a batch, between several replicas or
            into micro-batches, are tried on a few examples first. A result
            that depends on the cut is rejected. Layers are called several
            times for this.

    Attributes:
        batch_size: as given.
        seed: as given.
        history: the values of all epochs that this process has trained.

    Raises:
        UserError: an argument is not valid.
    """

    @with_keywords(Recipe.arguments(), first=("loss", "optimizer", "metrics"))
    def __init__(
        self,
        model: MakeModel,
        *,
        data: Data = None,
        batch_size: Positive | None = None,
        strategy: Text | StrategyPlugin | tf.distribute.Strategy = "auto",
        data_dir: Path | None = None,
        **arguments: Any,
    ) -> None:
        # Refused here, before a model is built.
        if isinstance(strategy, str):
            check_strategy(strategy)
        self._recipe = Recipe(
            name=type(self).__name__,
            overridden=frozenset(filter(self._has_own, OVERRIDABLE)),
            model=model,
            **arguments,
        )
        self._splits = Splits(
            data,
            batch_size=batch_size,
            seed=self._recipe.seed,
            data_dir=None if data_dir is None else os.fspath(data_dir),
        )
        self.seed = self._recipe.seed
        self.history = History()
        self._strategy = strategy
        self._accounts = Accounts()
        # Of the call that is under way, or of the last one.
        self._run: Run | None = None
        # What a call has given: perhaps the only data to build a model with.
        self._first_batches: Batches | None = None

    # What is built, on first use.

    @functools.cached_property
    def plugin(self) -> StrategyPlugin:
        """The strategy plugin that runs the steps."""
        return find_strategy(self._strategy)

    @functools.cached_property
    def _built(self) -> Built:
        # Before anything is built: a wrong batch_size shows at once.
        self._check_sizes()
        return Built(
            self.plugin,
            self._recipe,
            accounts=self._accounts,
            call_once=self._call_once,
        )

    def build(self) -> None:
        """Creates strategy, model and optimizer now instead of on first use.

        Raises:
            UserError: something that was given does not fit.
        """
        self._new_spec(self._recipe.class_weight).bind()

    def _new_run(self, model_dir: str | None = None) -> Run:
        """Begins a call that trains, evaluates or predicts.

        Args:
            model_dir: where the run lives; `None` writes nothing.

        Raises:
            UserError: something that was given does not fit.
        """
        self._take_changes()
        self.build()
        self._run = Run(
            self._built, self._spec, batches=self.batches, model_dir=model_dir
        )
        return self._run

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy` under which the model is trained."""
        return self.plugin.strategy

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self._built.model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer; the first one if there are several."""
        return next(iter(self._built.parts.optimizers.values()))

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        # Without building what is not built.
        return self._built.state.step if "_built" in vars(self) else 0

    @property
    def batch_size(self) -> int:
        """Examples in a global batch, over all replicas and micro-batches."""
        return self._splits.batch_size

    @property
    def stop_reason(self) -> str | None:
        """Why training ended early; `None` if it did not."""
        return None if self._run is None else self._run.stop_reason

    def batches(self, split: str) -> Batches:
        """The global batches of a split.

        Args:
            split: `"train"`, `"eval"`, or another that the data has.

        Raises:
            UserError: there is no data, or it is not usable.
        """
        return self._splits.batches(
            split, drop_remainder=self.plugin.options.static_shapes
        )

    # Running.

    @checked
    @taking(lambda facts: facts.in_python == "train")
    def train(
        self,
        steps: Length,
        *,
        model_dir: Path | None = None,
        callbacks: Any = (),
        **options: Any,
    ) -> dict[str, float]:
        """Trains until `steps` optimizer steps are done in all.

        A second call continues from there: after `train(1000)`, `train(1500)`
        makes 500 more steps.

        Args:
            steps: where to end, counted from the run's beginning: a number of
                steps, or such as `"3 epochs"` or `"10k steps"`.
            model_dir: where the run lives, and resumes; `None` writes nothing.
            callbacks: Keras' or ours; see `trainer.Callback`.
            **options: see below.

        Returns:
            The newest training values by name.

        Raises:
            UserError: something that was given does not fit.
            StartAgain: the run was preempted; its state is saved.
            Diverged: the guard found no way back.
        """
        return self._train(
            callbacks, model_dir, evaluate=False, train_steps=steps, **options
        )

    @checked
    @taking(lambda facts: bool(facts.in_python))
    def train_and_evaluate(
        self,
        steps: Length,
        *,
        model_dir: Path | None = None,
        callbacks: Any = (),
        **options: Any,
    ) -> dict[str, float]:
        """Trains as `train` does, and evaluates when due and at the end.

        Args:
            steps: see `train`.
            model_dir: see `train`.
            callbacks: see `train`.
            **options: see below.

        Returns:
            The newest training values, evaluation values as `val_*`, and
            those of a set such as `"rare"` as `val_rare/*`.

        Raises:
            UserError: something that was given does not fit.
            StartAgain: the run was preempted; its state is saved.
            Diverged: the guard found no way back.
        """
        return self._train(
            callbacks, model_dir, evaluate=True, train_steps=steps, **options
        )

    @checked
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Positive | None = None,
        epochs: Positive = 1,
        verbose: Verbosity = "auto",
        callbacks: Any = None,
        validation_split: Annotated[float, Ge(0), Lt(1)] = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: ClassWeight | None = None,
        sample_weight: Any = None,
        initial_epoch: Natural = 0,
        steps_per_epoch: Positive | None = None,
        validation_steps: Positive | None = None,
        validation_batch_size: Positive | None = None,
        validation_freq: Any = 1,
        *,
        steps_per_loop: Positive | None = None,
    ) -> History:
        """Trains `epochs` more epochs, as `keras.Model.fit` does.

        Each call begins an epoch of its own, and numbers its epochs from
        `initial_epoch`. For a run that can be resumed, use `train` with a
        `model_dir`.

        Args:
            x: arrays, pandas frames, or a list or dict of these by input; or
                a `tf.data.Dataset` of batches, a `PyDataset`, a generator, or
                `trainer.Examples`. `None` trains on the Trainer's own data, and
                evaluates its eval split if there is one. Any other
                value replaces the Trainer's data from now on.
            y: targets, if `x` is arrays.
            batch_size: examples in a global batch of arrays; by default the
                Trainer's. It is the Trainer's from now on.
            epochs: the number of the epoch to end before.
            verbose: see `train`.
            callbacks: see `train`.
            validation_split: evaluates this share of the arrays, at their end,
                instead of training on it.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset of
                batches, evaluated after each epoch; or a dict of these by
                split, such as `{"eval": ..., "rare": ...}`.
            shuffle: whether arrays, and the batches of a `PyDataset`, are
                shuffled in each epoch. A dataset has its own order, and so does
                the Trainer's data.
            class_weight: in place of the Trainer's, for this call.
            sample_weight: a weight for each example, if `x` is arrays. Metrics
                use it, too, as `weighted_metrics` do in Keras.
            initial_epoch: the number of the first epoch.
            steps_per_epoch: steps in an epoch; by default one pass over the
                data. A dataset that ends starts again; an epoch
                of arrays is at most one pass.
            validation_steps: batches in an evaluation, but at most all; `None`
                means all.
            validation_batch_size: of arrays, by default `batch_size`; for speed
                only.
            validation_freq: evaluates after every n-th epoch by its number; a
                dict has n for each split that is evaluated.
            steps_per_loop: see `train`.

        Returns:
            The values of this call's epochs.

        Raises:
            UserError: something that was given does not fit.
        """
        data = fitting.FitData(
            x=x,
            y=y,
            sample_weight=sample_weight,
            validation_data=validation_data,
            validation_split=validation_split,
            shuffle=shuffle,
            batch_size=batch_size,
            validation_batch_size=validation_batch_size,
        )
        wanted = fitting.epochs_of(epochs, initial_epoch, steps_per_epoch)
        evaluations = fitting.evaluations_of(
            data,
            freq=validation_freq,
            steps=validation_steps,
            has_eval=self._splits.has_eval,
        )
        own = History()
        begin = self.step
        with self._splits.set_back_unless(lambda: self.step > begin):
            self._recipe.check_class_weight(class_weight)
            self._splits.take(data.given(), data.batch_size)
            self._check_sizes()
            self._train(
                callbacks,
                **evaluations,
                fit=wanted,
                log_every="1 epoch" if verbose == 2 else 100,
                steps_per_loop=steps_per_loop,
                verbose=verbose,
                history=own,
                class_weight=class_weight,
            )
        return own

    @checked
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        data: Any = None,
        split: Text = "eval",
        batch_size: Positive | None = None,
        steps: Positive | None = None,
        callbacks: Any = None,
        verbose: Verbosity = "auto",
        return_dict: Literal[True] = True,
    ) -> dict[str, float]:
        """Measures a split, with the averaged weights if there are any.

        Args:
            x: arrays to measure in place of a split of the Trainer's data.
            y: their targets.
            sample_weight: a weight for each example.
            data: in place of these, whatever `Trainer(data=...)` takes, such
                as a dataset of batches.
            split: of the Trainer's data, such as `"test"`.
            batch_size: examples in a batch of arrays that are given here, for
                speed only; by default the Trainer's.
            steps: how many batches, but at most all; `None` means all.
            callbacks: a `keras.callbacks.Callback` or a list of them, called
                for each batch, at the beginning and at the end.
            verbose: 1 or 2 print a line with the values.
            return_dict: as in Keras; there is always a dict.

        Returns:
            Loss and metrics by name, over all examples, and values that
            callbacks have added in `on_test_end`.

        Raises:
            UserError: something that was given does not fit.
        """
        batches = fitting.evaluated_batches(
            x,
            y,
            sample_weight,
            data=data,
            batch_size=batch_size,
            default_batch_size=self.batch_size,
            split=split,
        )
        if batches is None:
            batches = self.batches(split)
        with self._calling(
            callbacks, batches, steps=steps, verbose=verbose
        ) as (run, called):
            run.check_data(batches)
            called.call("on_test_begin", {})
            values = run.evaluator(batches)(
                steps, event=called.batch_events, execution=called.execution
            )
            called.call("on_test_end", values)
        values = numbers_of("on_test_end", values)
        if verbose in (1, 2):
            print_values(split, **values)
        return Values(values)

    @checked
    def predict(
        self,
        x: Any,
        *,
        batch_size: Positive | None = None,
        steps: Positive | None = None,
        callbacks: Any = None,
        verbose: Verbosity = "auto",
    ) -> Any:
        """The model's outputs, with the averaged weights if there are any.

        Calls `forward`, on one device under any strategy.

        Args:
            x: arrays, frames, or a list or dict of these by input; or data
                that yields batches, whose targets are not used.
            batch_size: examples in a batch of arrays; by default the
                Trainer's.
            steps: how many batches, but at most all; `None` means all.
            callbacks: as for `evaluate`.
            verbose: 1 or 2 print a line with the number of examples.

        Returns:
            NumPy arrays with one row for each example, in the structure of
            the model's outputs.

        Raises:
            UserError: `x` does not fit the model.
        """
        batches = fitting.predicted_batches(x, batch_size, self.batch_size)
        with self._calling(
            callbacks, batches, steps=steps, verbose=verbose
        ) as (run, called):
            found = predict(run, batches, steps=steps, called=called)
        if verbose in (1, 2):
            print_values("predict", examples=len(keras.tree.flatten(found)[0]))
        return found

    def log(
        self,
        name: str,
        value: Any,
        *,
        kind: Kind | None = None,
        split: Text | None = None,
        sample_rate: int | None = None,
    ) -> None:
        """Logs a value, from a callback or a step, to every logger of the run.

        `train` returns numbers, too, `history` has them, and callbacks can
        monitor them. Those of an evaluation are called `val_*`.

        In a callback, a value belongs to the current step. It is part of the
        log that is due there, or is logged on its own.

        In a step (`train_step`, `eval_step`, `per_example_loss`, `global_loss`
        and `forward`), a number is logged like every other value of the step:
        as its mean since the last log. Each replica has its own, so it must be
        one value for each example or an `average`, which are equal under every
        strategy.

        Args:
            name: letters, digits, spaces, and `_`, `-`, `.` and `/`.
            value: a number, a string or an array. In a step: numbers of shape
                `[batch]`, or a `trainer.average`.
            kind: the kind of an array. An `"image"` is of uint8, or of floats
                from 0 to 1, and of shape `[height, width]`, `[height, width,
                channels]` or `[images, height, width, channels]`. A
                `"histogram"` is of any shape. `"audio"` is of floats from -1
                to 1, of shape `[frames]` or `[frames, channels]`.
            split: the split that it belongs to, in a callback; by default that
                of the evaluation under way, otherwise `"train"`.
            sample_rate: of audio, in frames per second.

        Raises:
            UserError: the value is not one of these, or nothing runs.
        """
        check_words(name, kind=kind)
        if log_in_step(name, value, kind=kind, split=split):
            return
        if self._run is None:
            raise outside_of_a_run(name)
        self._run.log(
            name, value, kind=kind, split=split, sample_rate=sample_rate
        )

    @checked
    def save(self, path: Path, *, overwrite: bool = True) -> None:
        """Saves the model in Keras' format; `keras.models.load_model` reads it.

        It holds the averaged weights if there are any. Only the chief writes.

        Args:
            path: ends with `.keras`; or with `.weights.h5` for the weights
                alone.
            overwrite: whether to replace an existing file.

        Raises:
            UserError: `path` ends differently, the file exists, or Keras
                cannot save the model.
        """
        self._take_changes()
        save_model(self._built, path, overwrite=overwrite)

    def summary(self, **options: Any) -> None:
        """Prints strategy, precision and layers.

        Args:
            **options: of `keras.Model.summary`.
        """
        (options.get("print_fn") or print)(self._new_run().describe())
        self.model.summary(**options)

    # How it works; nothing below is meant to be overridden.

    def _take_changes(self) -> None:
        """Takes over what the user has changed since the last call."""
        is_over = self._recipe.is_compiled_again()
        before = vars(self).pop("_built", None) if is_over else None
        self._built.take_changes(before)

    def _train(
        self,
        callbacks: Any,
        model_dir: Path | None = None,
        *,
        evaluate: bool,
        verbose: Verbosity = "auto",
        history: History | None = None,
        class_weight: ClassWeight | None = None,
        fit: FitEpochs | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Runs a host loop, and notes its epochs."""
        own = History() if history is None else history
        called = of_training(callbacks, own, fit=fit, verbose=verbose)
        run = self._new_run(None if model_dir is None else os.fspath(model_dir))
        if class_weight is not None:
            run.spec = self._new_spec(class_weight)
        loop = Loop(
            run,
            RunOptions(callbacks=called, **options),
            evaluate=evaluate,
            fit=fit,
            verbose=2 if verbose == 2 else 1,
        )
        try:
            return Values(loop.run())
        finally:
            self.history.extend(own)
            self._built.give_back()

    @contextlib.contextmanager
    def _calling(
        self, callbacks: Any, batches: Batches, **params: Any
    ) -> Iterator[tuple[Run, CallbackList]]:
        """A call that does not train; a run under way stays the current one.

        Args:
            callbacks: a list, a single one or `None`.
            batches: what it reads, which may be all the data there is.
            **params: what Keras' callbacks find in their `params`.
        """
        before = self._run
        self._first_batches = batches
        try:
            run = self._new_run()
            called = CallbackList(as_callbacks(callbacks), run)
            called.attach(self.model, params)
            self._run = before
            yield run, called
        finally:
            # It would keep the data.
            self._first_batches = None
            self._run = before

    def _check_sizes(self) -> None:
        check_against_strategy(
            self.plugin,
            batch_size=self.batch_size,
            accumulation_steps=self._recipe.accumulation_steps,
            form=self._recipe.form,
        )

    def _new_spec(self, class_weight: ClassWeight | None) -> StepSpec:
        return self._built.spec(
            methods=self,
            batches=self.batches,
            saves=lambda: self._run is not None and self._run.saves,
            batch_size=self.batch_size,
            class_weight=class_weight,
        )

    def _has_own(self, method: str) -> bool:
        """Whether a subclass overrides a method of the step."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    def _call_once(self, model: keras.Model) -> None:
        """Calls a model that is built by its first batch."""
        model(self._splits.example(self._first_batches, self.batches))
