"""`Built`: what a Trainer makes once, in the scope of its strategy."""

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import keras

from trainer.checkpoint.stateful import RunState
from trainer.data.batches import Batches
from trainer.loop.goodput import Accounts
from trainer.step.spec import StepSpec
from trainer.strategy.build import build_model, build_parts
from trainer.strategy.given import (
    belongs_to_none,
    not_compiled,
    trains_itself,
)
from trainer.strategy.hand_over import hand_over_values
from trainer.strategy.optimizers import (
    by_part,
    follow_rates,
    give_back_states,
    restart_optimizers,
)
from trainer.strategy.plugin import StrategyPlugin
from trainer.strategy.recipe import Recipe


class Built:
    """Plugin, model, optimizers and state: once for a Trainer.

    Weights, `trainable` flags and restarts act on it. Everything that belongs
    to a single call of `fit`, `train` or `evaluate` is in its
    `trainer.loop.run.Run`.

    Args:
        plugin: the strategy.
        recipe: the arguments to build everything from.
        accounts: where the time of the Trainer's runs goes.
        call_once: calls a model that is built by its first batch.

    Attributes:
        plugin: as given.
        parts: the objects in the strategy's scope.
        accounts: as given.
        state: the contents of checkpoints.
        runners: the loops of steps that have been traced, by what they were
            traced for; see `trainer.loop.run.Run`.
        checked: data that is known to fit.
        specs: of the steps of its calls, by what differs between them.
        form: gave the last training steps their compiled form.
        last: the state of the last loop, if it has ended well.

    Raises:
        UserError: something in the recipe cannot be honored.
    """

    def __init__(
        self,
        plugin: StrategyPlugin,
        recipe: Recipe,
        *,
        accounts: Accounts,
        call_once: Callable[[keras.Model], None],
    ) -> None:
        self.plugin = plugin
        self.accounts = accounts
        self.runners: dict[Hashable, Any] = {}
        self.checked: weakref.WeakSet[Batches] = weakref.WeakSet()
        self.last: Any = None
        self.form: Any = None
        self.specs: dict[Hashable, StepSpec] = {}
        # The learning rates of optimizers that were given, as last seen.
        self._rates: dict[str, float] = {}
        self._recipe = recipe
        self._call_once = call_once
        given = recipe.given
        self.parts = build_parts(plugin, recipe, call_once=call_once)
        self.state = RunState(self.parts, plugin)
        if given is not None and not given.model.built:
            # Now, as it cannot be given trained weights otherwise.
            call_once(given.model)
            given.give_back(self.parts.model)
        follow_rates(self.parts, recipe.optimizer, self._rates)

    @property
    def model(self) -> keras.Model:
        """The model; its variables live in the strategy's scope."""
        return self.parts.model

    @property
    def steps_per_execution(self) -> int:
        """The batches for which Keras calls callbacks once."""
        given = self._recipe.given
        return int((given or self).model.steps_per_execution)

    def spec(
        self,
        *,
        batch_size: int,
        class_weight: dict[int, float] | None,
        **of_call: Any,
    ) -> StepSpec:
        """Returns the specification of the steps of a call.

        Calls that are alike share one, and so what has been traced and tried.

        Args:
            batch_size: examples in a global batch.
            class_weight: class number to weight.
            **of_call: the rest of what a `StepSpec` needs, alike in all calls.
        """
        key = batch_size, tuple(sorted((class_weight or {}).items()))
        if key not in self.specs:
            self.specs[key] = self._recipe.spec(
                parts=self.parts,
                plugin=self.plugin,
                batch_size=batch_size,
                class_weight=class_weight,
                **of_call,
            )
        return self.specs[key]

    def learning_rates(self) -> dict[str, float]:
        """The optimizers' present learning rates."""
        rates = {
            # The shortest decimal of this float32: 0.01, not 0.009999999776.
            name: float(str(keras.ops.convert_to_numpy(one.learning_rate)))
            for name, one in by_part(self.parts.optimizers).items()
        }
        if len(rates) == 1:
            return {"learning_rate": next(iter(rates.values()))}
        return {f"learning_rate_{name}": rate for name, rate in rates.items()}

    def single_device_model(self) -> keras.Model:
        """A copy of the model outside the strategy, for a check or a test.

        It holds the averaged weights if there are any.

        Raises:
            UserError: the model cannot be made again.
        """
        made = build_model(self._recipe.model, self._recipe.precision)
        if not made.built:
            self._call_once(made)
        hand_over_values(self.model, made)
        self._average(made)
        return made

    def _average(self, made: keras.Model) -> None:
        """Puts the averaged weights, if there are any, into another model."""
        # Copied one by one, not swapped in and out of the model that trains:
        # only the chief may be doing this, and a swap involves all processes.
        if self.parts.ema is None:
            return
        self.parts.ema.follow()
        # Not by what is trainable now, which may be less than at first.
        averages = {
            id(variable): average
            for variable, average in zip(
                self.parts.trained, self.parts.ema.variables, strict=True
            )
        }
        for own, its in zip(self.model.weights, made.weights, strict=True):
            if id(own) in averages:
                its.assign(averages[id(own)].read_value())

    @contextlib.contextmanager
    def model_to_save(self) -> Iterator[keras.Model]:
        """The model outside the strategy, with the averaged weights if any.

        Where no scope has made its variables, it is the model that trains;
        else the given one, which gets its weights; else a copy. What is saved
        has neither optimizer nor loss.

        Raises:
            UserError: the model cannot be made again.
        """
        given, model = self._recipe.given, self.model
        ema = self.parts.ema
        with contextlib.ExitStack() as exits:
            if trains_itself(self.plugin, model.variables):
                if ema is not None:
                    exits.enter_context(ema.swapped_in())
            elif given is not None and belongs_to_none(given.model.variables):
                given.give_back(model)
                exits.callback(given.give_back, model)
                model = given.model
                self._average(model)
            else:
                model = self.single_device_model()
            exits.enter_context(not_compiled(model))
            yield model

    def restart_optimizers(self) -> None:
        """Resets the optimizers to their initial state, for these weights."""
        with self.plugin.scope():
            restart_optimizers(
                self.parts,
                self._recipe.optimizer or "adam",
                self._recipe.learning_rate,
                self.plugin,
            )

    def take_changes(self, before: "Built | None" = None) -> None:
        """Takes over what has changed in what was given since the last call.

        Args:
            before: was built for what a model was compiled with before.
        """
        if before is not None:
            self.state.step = before.state.step
            self.parts.step.assign(self.state.step)
        if self._recipe.given is not None:
            self._recipe.given.take_over(self.model)
        follow_rates(self.parts, self._recipe.optimizer, self._rates)

    def give_back(self) -> None:
        """Puts trained weights into a given model, of which a copy trains."""
        recipe = self._recipe
        if recipe.given is not None:
            recipe.given.give_back(self.model)
        give_back_states(
            self.parts,
            recipe.optimizer,
            self._rates,
            # That of this Trainer alone.
            with_rate=recipe.learning_rate is None,
        )
