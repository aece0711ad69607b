"""`Running`: the methods of a Trainer that train, measure and predict.

Beside `Trainer`, whose file has what research code reads and overrides.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import keras
import tensorflow as tf
from annotated_types import Ge, Lt

from trainer.check.costs import activation_bytes, memory_of
from trainer.check.programs import RunPrograms
from trainer.data import Batches
from trainer.data.adapters import takes_split
from trainer.data.given import GivenData
from trainer.errors import UserError
from trainer.loop.callback_list import CallbackList
from trainer.loop.evaluation_sets import EvalEvery
from trainer.loop.evaluator import Evaluator, OtherEvaluations
from trainer.loop.logged import (
    Kind,
    as_value,
    check_words,
    numbers_of,
)
from trainer.loop.loop import Loop
from trainer.loop.profiler import Steps as ProfiledSteps
from trainer.loop.reporter import Reporter
from trainer.loop.running_trainer import RunningTrainer
from trainer.loop.schedule import Length, PeriodLike, Time
from trainer.python.callbacks import as_callbacks, with_defaults
from trainer.python.describe import check_save_path, describe
from trainer.python.fit import (
    FitData,
    as_eval_every,
    epochs_of,
    evaluated_batches,
)
from trainer.python.given_model import GivenModel
from trainer.python.history import History
from trainer.python.predict import (
    make_predict,
    predict,
    predicted_batches,
)
from trainer.step.forms import Form
from trainer.step.measuring import log_in_step
from trainer.step.trials.prepare import prepare
from trainer.strategy.checks import check_against_strategy, check_global_loss
from trainer.strategy.eager_loop import eagerly
from trainer.values.annotations import (
    Natural,
    NotNegative,
    Path,
    Positive,
    Text,
    Verbosity,
)
from trainer.values.configurable import checked
from trainer.values.keras_values import ClassWeight

# Checked as a part of what a loop runs, without being it at run time: a
# `Protocol` would bring a constructor of its own.
if TYPE_CHECKING:
    _Base = RunningTrainer
else:
    _Base = object


class Running(_Base):
    """The part of `trainer.Trainer` that runs it.

    Attributes:
        history: the values of all epochs that this process has trained.
    """

    history: History
    loop: Loop | None
    model_dir: str | None
    batch_size: int
    accumulation_steps: int
    class_weight: dict[int, float] | None
    run_eagerly: bool
    compiled_form: Form
    _own_class_weight: dict[int, float] | None
    _data: Any
    _batches: dict[str, Batches]
    _first_batches: Batches | None
    _given_model: GivenModel | None
    _called: CallbackList | None

    if TYPE_CHECKING:  # What `Trainer` itself has.
        model_to_save: Callable[
            [], contextlib.AbstractContextManager[keras.Model]
        ]
        _has_own: Callable[[str], bool]
        _has_to_leave: Callable[[], bool]
        _batch_events: Callable[[], Callable[..., None] | None]

        @property
        def reporter(self) -> Reporter | None:
            """Reports the evaluations of the run that goes on."""

        @property
        def evaluator(self) -> Evaluator:
            """Measures the eval split."""

    @checked
    def train(
        self,
        steps: Length,
        *,
        max_time: Time | None = None,
        model_dir: Path | None = None,
        callbacks: Any = (),
        log_every: PeriodLike = 100,
        steps_per_loop: Positive = 100,
        loop_seconds: NotNegative = 15.0,
        verbose: Verbosity = "auto",
        profile: ProfiledSteps | None = None,
    ) -> dict[str, float]:
        """Trains until `steps` optimizer steps are done in all.

        A second call goes on from there: after `train(1000)`, `train(1500)`
        makes 500 more steps.

        Args:
            steps: where to end, counted from the run's beginning: a number of
                steps, or such as `"3 epochs"` or `"10k steps"`.
            max_time: ends training before that, at the next boundary of the
                host loop, once the run has trained this long: such as `"30m"`.
                All attempts of a resumed run count, but neither the time
                between them nor what a killed one has lost.
            model_dir: where the run lives, and resumes; `None` writes nothing.
            callbacks: Keras' or ours; see `trainer.Callback`.
            log_every: the period of training logs, such as `100`, `"1 epoch"`
                or `"30s"`.
            steps_per_loop: the most steps between two boundaries at which
                callbacks act.
            loop_seconds: how long a graph call may take, in seconds.
            verbose: 0 shows no progress, 2 one line for each epoch; `"auto"`
                and 1 show a bar on a terminal and in a notebook, and lines
                elsewhere.
            profile: the steps to trace for TensorBoard's profile tab, such as
                `"10:20"`; needs a `model_dir`.

        Returns:
            The newest training values by name.

        Raises:
            UserError: something that was given does not fit.
            StartAgain: the run was preempted; its state is saved.
            Diverged: the guard found no way back.
        """
        return self._run(
            steps,
            evaluate=False,
            max_time=max_time,
            model_dir=model_dir,
            callbacks=callbacks,
            log_every=log_every,
            steps_per_loop=steps_per_loop,
            loop_seconds=loop_seconds,
            profile=profile,
            verbose=verbose,
        )

    @checked
    def train_and_evaluate(
        self,
        steps: Length,
        *,
        eval_every: EvalEvery | None = None,
        eval_steps: Positive | None = None,
        max_time: Time | None = None,
        model_dir: Path | None = None,
        callbacks: Any = (),
        log_every: PeriodLike = 100,
        steps_per_loop: Positive = 100,
        loop_seconds: NotNegative = 15.0,
        verbose: Verbosity = "auto",
        profile: ProfiledSteps | None = None,
    ) -> dict[str, float]:
        """Trains as `train` does, and evaluates when due and at the end.

        Args:
            steps: see `train`, also for what is not said here.
            eval_every: the period of evaluations, such as `500` or
                `"2 epochs"`; `None` is each epoch. Several sets are a dict by
                split, such as `{"eval": 500, "rare": "2 epochs"}`.
            eval_steps: batches in an evaluation, but at most all; `None` means
                all.
            max_time: see `train`.
            model_dir: see `train`.
            callbacks: see `train`.
            log_every: see `train`.
            steps_per_loop: see `train`.
            loop_seconds: see `train`.
            verbose: see `train`.
            profile: see `train`.

        Returns:
            The newest training values, evaluation values as `val_*`, and
            those of a set such as `"rare"` as `val_rare/*`.

        Raises:
            UserError: something that was given does not fit.
            StartAgain: the run was preempted; its state is saved.
            Diverged: the guard found no way back.
        """
        return self._run(
            steps,
            evaluate=True,
            eval_every=eval_every,
            eval_steps=eval_steps,
            max_time=max_time,
            model_dir=model_dir,
            callbacks=callbacks,
            log_every=log_every,
            steps_per_loop=steps_per_loop,
            loop_seconds=loop_seconds,
            profile=profile,
            verbose=verbose,
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
    ) -> History:
        """Trains `epochs` more epochs, as `keras.Model.fit` does.

        Each call begins an epoch of its own, and numbers its epochs from
        `initial_epoch`. For a run that can be resumed, use `train` with a
        `model_dir`.

        Args:
            x: arrays, pandas frames, or a list or dict of these by input; or
                a `tf.data.Dataset` of batches, a `PyDataset`, or
                `trainer.Examples`. `None` trains on the Trainer's own data, and
                evaluates its eval split if there is one. Otherwise, what is
                given here is the Trainer's data from now on.
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
                shuffled in each epoch. A dataset has an order of its own, and
                so has the Trainer's own data.
            class_weight: in place of the Trainer's, for this call.
            sample_weight: a weight for each example, if `x` is arrays. Metrics
                use it, too, as `weighted_metrics` do in Keras.
            initial_epoch: the number of the first epoch.
            steps_per_epoch: steps in an epoch; by default one pass over the
                data. Data that ends goes on from its beginning.
            validation_steps: batches in an evaluation, but at most all; `None`
                means all.
            validation_batch_size: of arrays, by default `batch_size`; for speed
                only.
            validation_freq: evaluates after every n-th epoch by its number; a
                dict has n for each split that is evaluated.

        Returns:
            The values of this call's epochs.

        Raises:
            UserError: something that was given does not fit.
        """
        data = FitData(
            x=x,
            y=y,
            sample_weight=sample_weight,
            validation_data=validation_data,
            validation_split=validation_split,
            shuffle=shuffle,
            batch_size=batch_size,
            validation_batch_size=validation_batch_size,
        )
        by_set = isinstance(validation_freq, Mapping)
        evaluates = data.evaluates or (
            x is None and (by_set or self._has_eval_data())
        )
        data.check(
            evaluates=evaluates,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=None if validation_freq == 1 else validation_freq,
        )
        wanted = epochs_of(epochs, initial_epoch, steps_per_epoch)
        sets = () if x is None and by_set else data.sets
        eval_every = as_eval_every(validation_freq, sets)
        own = History()
        with self._data_of_call():
            self._take_data(data, class_weight or self._own_class_weight)
            self._run(
                wanted.epochs,
                evaluate=evaluates,
                eval_every=eval_every,
                eval_steps=validation_steps,
                callbacks=callbacks,
                fit=wanted,
                log_every="1 epoch" if verbose == 2 else 100,
                verbose=verbose,
                history=own,
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
            x: arrays to measure in place of a split of the Trainer's data. (A
                number is `steps`.)
            y: their targets.
            sample_weight: a weight for each example.
            data: in place of these, whatever `Trainer(data=...)` takes, such
                as a dataset of batches.
            split: of the Trainer's data, such as `"test"`.
            batch_size: examples in a batch of arrays that are given here, for
                speed only; by default the Trainer's.
            steps: how many batches, but at most all; `None` means all.
            callbacks: what is called for each batch, and at begin and end;
                a `keras.callbacks.Callback` or a list of them.
            verbose: 1 or 2 print a line with the values.
            return_dict: as in Keras; there is always a dict.

        Returns:
            Loss and metrics by name, over all examples, and what callbacks
            have added in `on_test_end`.

        Raises:
            UserError: something that was given does not fit.
        """
        if isinstance(x, int):
            if steps is not None:
                raise UserError(
                    f"evaluate got {x} and steps = {steps}, but a number is "
                    "steps: give one of them."
                )
            x, steps = None, x
        batches = evaluated_batches(
            x,
            y,
            sample_weight,
            data=data,
            batch_size=batch_size,
            default_batch_size=self.batch_size,
            split=split,
        )
        own = batches is None
        batches = batches or self.batches(split)
        self._take_over_changes()
        self._build_from(batches)
        self.check_data(batches)
        if callbacks is None and verbose in ("auto", 0):
            return self._measure(batches, steps, own=own and split == "eval")
        with self._calling(callbacks, steps=steps, verbose=verbose) as called:
            called.call("on_test_begin", {})
            values = self._measure(batches, steps, own=own and split == "eval")
            called.call("on_test_end", values)
        values = numbers_of("on_test_end", values)
        if verbose in (1, 2):
            _write_line(_line_of(split, values))
        return values

    @contextlib.contextmanager
    def _calling(self, callbacks: Any, **params: Any) -> Iterator[CallbackList]:
        """Gives callbacks the model; those of a run are not called meanwhile.

        Args:
            callbacks: a list, a single one or `None`.
            **params: what Keras' callbacks find in their `params`.

        Raises:
            UserError: an entry is not a callback.
        """
        called = CallbackList(as_callbacks(callbacks), self)
        called.attach(self.model, params)
        before, self._called = self._called, called
        try:
            yield called
        finally:
            self._called = before

    def _measure(
        self, batches: Batches, steps: int | None, *, own: bool
    ) -> dict[str, float]:
        """Measures batches; `own`: of the Trainer's own eval split."""
        if own:
            return self.evaluator(steps)
        return self._other_evaluations(self.spec, batches, steps)

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
            x: arrays, frames, or a list or dict of these by input; or what
                yields batches, whose targets are not used.
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
        self._take_over_changes()
        batches = predicted_batches(
            x, batch_size=batch_size, default_batch_size=self.batch_size
        )
        self._build_from(batches)
        self.build()
        ema = self.parts.ema
        with (
            ema.swapped_in() if ema else contextlib.nullcontext(),
            eagerly() if self.run_eagerly else contextlib.nullcontext(),
            self._calling(callbacks, steps=steps, verbose=verbose) as called,
        ):
            found = predict(
                self._predict_function,
                batches,
                model=self.model,
                steps=steps,
                event=called.call,
            )
        if verbose in (1, 2):
            rows = len(keras.tree.flatten(found)[0])
            _write_line(_line_of("predict", {"examples": rows}))
        return found

    @tf.autograph.experimental.do_not_convert
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

        Numbers also become part of what `train` returns, of `history`, and of
        what callbacks can monitor; those of evaluation as `val_*`.

        In a callback, a value is that of the present step. It goes with the
        log that is due there, or is written beside it.

        In a step, which is what `train_step`, `eval_step`, `per_example_loss`,
        `global_loss` and `forward` are part of, a number is logged as every
        other value of the step is: as its mean since the last log. Each
        replica has its own, so it must be one value for each example or an
        `average`, which are equal under every strategy.

        Args:
            name: letters, digits, spaces, and `_`, `-`, `.` and `/`.
            value: a number, a string or an array. In a step: numbers of shape
                `[batch]`, or a `trainer.average`.
            kind: what an array is. An `"image"` is of uint8, or of floats from
                0 to 1, and of shape `[height, width]`, `[height, width,
                channels]` or `[images, height, width, channels]`. A
                `"histogram"` is of any shape. `"audio"` is of floats from -1
                to 1, of shape `[frames]` or `[frames, channels]`.
            split: whose value it is, in a callback; by default that of the
                evaluation which is under way, and else `"train"`.
            sample_rate: of audio, in frames per second.

        Raises:
            UserError: the value is not one of these, or nothing runs.
        """
        check_words(name, kind=kind)
        if log_in_step(name, value, kind=kind, split=split):
            return
        reporter = self.reporter
        if reporter is None:
            raise UserError(
                f"trainer.log({name!r}, ...) was called outside of a run. Call "
                "it in a callback, or in what a step calls."
            )
        given = as_value(name, value, kind=kind, sample_rate=sample_rate)
        reporter.log(name, given, split)

    def save(self, path: Path, *, overwrite: bool = True) -> None:
        """Saves the model in Keras' format; `keras.models.load_model` reads it.

        It holds the averaged weights if there are any. Only the chief writes.

        Args:
            path: ends with `.keras`; or with `.weights.h5` for the weights
                alone.
            overwrite: whether to replace an existing file.

        Raises:
            UserError: the ending is another, the file exists, or Keras cannot
                save the model.
        """
        check_save_path(path, overwrite=overwrite)
        self._take_over_changes()
        with self.model_to_save() as model:
            if not self.plugin.is_chief:
                return
            if not os.fspath(path).endswith(".keras"):
                model.save_weights(path, overwrite=overwrite)
                return
            try:
                model.save(path, overwrite=overwrite)
            # What Keras raises for a class that it cannot serialize.
            except (NotImplementedError, TypeError) as error:
                raise UserError(
                    f"Keras cannot save a {type(model).__name__} as .keras "
                    f"({type(error).__name__}). Give the class a get_config "
                    "that returns its constructor's arguments, or save the "
                    "weights alone: save('model.weights.h5')."
                ) from None

    def summary(self, **options: Any) -> None:
        """Prints strategy, precision and layers.

        Args:
            **options: of `keras.Model.summary`.
        """
        self.build()
        say = options.get("print_fn") or _write_line
        say(self.describe())
        self.model.summary(**options)

    def memory_report(self) -> dict[str, int | None]:
        """What a step takes of the memory of one device, in bytes.

        Returns:
            The variables of the `"model"`, its `"gradients"`, the
            `"optimizer"`, the `"moving average"`, and an estimate of the
            `"activations"` that a micro-batch keeps for its backward pass;
            `None` under a strategy that traces no step of its own.
            `--mode=check` says more.

        Raises:
            UserError: something that was given does not fit.
        """
        self.build()
        prepare(self.spec, training=True)
        return {
            **memory_of(self),
            "activations": activation_bytes(RunPrograms(self)),
        }

    def describe(self) -> str:
        """Strategy, devices, parameters, batch and precision, in one line."""
        return describe(self)

    def _run(
        self,
        steps: int | str,
        *,
        callbacks: Any,
        verbose: Verbosity,
        history: History | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Runs a host loop, and notes its epochs."""
        called = as_callbacks(callbacks)
        if options.get("model_dir") is not None:
            options["model_dir"] = os.fspath(options["model_dir"])
        self._take_over_changes()
        own = History() if history is None else history
        loop = Loop(
            self,
            steps=steps,
            callbacks=[*(with_defaults(called) if verbose else called), own],
            verbose=2 if verbose == 2 else 1,
            **options,
        )
        try:
            return loop.run()
        finally:
            self.history.extend(own)
            if self._given_model is not None and "parts" in vars(self):
                self._given_model.give_back(self.model)

    def _build_from(self, batches: Batches) -> None:
        """Builds the parts, if that is still to do, for these batches."""
        self._first_batches = batches
        try:
            _ = self.parts
        finally:
            # It would keep the data.
            self._first_batches = None

    def _take_over_changes(self) -> None:
        """Takes what has changed in the given model since the last call."""
        if self._given_model is not None and "parts" in vars(self):
            self._given_model.take_over(self.model)

    @contextlib.contextmanager
    def _data_of_call(self) -> Iterator[None]:
        """Lets `fit` keep its data only if it has trained on it.

        The class weights are those of the call in any case.
        """
        before = self._data, self.batch_size, dict(self._batches)
        begin = self._steps_made()
        try:
            yield
        except BaseException:
            if self._steps_made() == begin:
                self._data, size, batches = before
                self._use_sizes(size, self.class_weight)
                self._batches = batches
            raise
        finally:
            self._use_sizes(self.batch_size, self._own_class_weight)

    def _steps_made(self) -> int:
        """The step, without building what is not built."""
        return self.step if "parts" in vars(self) else 0

    def _use_sizes(
        self, batch_size: int, class_weight: dict[int, float] | None
    ) -> None:
        """Takes both, and forgets what was made for others."""
        if batch_size != self.batch_size:
            self._batches.clear()
        if (batch_size, class_weight) != (self.batch_size, self.class_weight):
            self.batch_size, self.class_weight = batch_size, class_weight
            # What was traced holds both.
            for name in ("spec", "train_runner", "evaluator"):
                self.__dict__.pop(name, None)

    def _take_data(
        self, data: FitData, class_weight: dict[int, float] | None
    ) -> None:
        """Trains on the data of `fit` from now on."""
        given = data.given()
        size = data.batch_size or self.batch_size
        if given is not None:
            # Anew each time: the user may have changed the arrays.
            self._data = given
            self._batches.clear()
            size = data.batch_size or given.batch_size or self.batch_size
        if self._has_own("global_loss"):
            check_global_loss(
                type(self).__name__,
                accumulation_steps=self.accumulation_steps,
                class_weight=class_weight,
            )
        self._use_sizes(size, class_weight)
        check_against_strategy(
            self.plugin,
            batch_size=self.batch_size,
            accumulation_steps=self.accumulation_steps,
            form=self.compiled_form,
        )

    def _has_eval_data(self) -> bool:
        """Whether the Trainer's own data has an eval split."""
        if isinstance(self._data, GivenData):
            return "eval" in self._data
        return self._data is not None and takes_split(self._data)

    @functools.cached_property
    def _other_evaluations(self) -> OtherEvaluations:
        return OtherEvaluations(
            self.plugin,
            has_to_leave=self._has_to_leave,
            batch_events=self._batch_events,
        )

    @functools.cached_property
    def _predict_function(self) -> Callable[..., Any]:
        return make_predict(self.spec)


def _write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _line_of(name: str, values: Mapping[str, float]) -> str:
    """A line to print: `eval  loss 1.254  accuracy 0.3672`."""
    return "  ".join([name, *(f"{k} {v:.4g}" for k, v in values.items())])
