"""`Shown`: what a Trainer says of itself."""

from typing import Any

from trainer.python.history import History
from trainer.python.tables import html_table
from trainer.strategy.recipe import Recipe
from trainer.values.words import shown


class Shown:
    """A Trainer's `repr`, and its table in a notebook. They build nothing."""

    history: History
    _recipe: Recipe
    _strategy: Any

    def __repr__(self) -> str:
        facts = [f"{name}={value}" for name, value in self._facts().items()]
        return f"{type(self).__name__}({', '.join(facts)})"

    def _repr_html_(self) -> str:
        newest = [(n, values[-1]) for n, values in self.history.history.items()]
        return html_table((), [*self._facts().items(), *newest])

    def _facts(self) -> dict[str, str]:
        built, recipe = vars(self).get("_built"), self._recipe
        if built is None:
            given = recipe.model if recipe.given is None else recipe.given.model
            model = shown(getattr(given, "name", given))
            return {"model": model, "strategy": shown(self._strategy)}
        count = len(built.plugin.devices())
        devices = f"{count} device{'s' * (count > 1)}"
        return {
            "model": repr(built.model.name),
            "strategy": f"{built.plugin.name} on {devices}",
            "step": str(built.state.step),
        }
