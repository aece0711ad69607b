"""Writes docs/reference/parameters.md: `python -m tests.parameters`.

Defaults come from signatures, valid values from annotations, and meanings from
docstrings; those of `run` from `RunOptions`.
"""

import inspect
import pathlib
import re

from trainer import Guard, Trainer
from trainer.experiment import build
from trainer.run_options import RunOptions, declared_in
from trainer.strategy.registry import load_plugins
from trainer.values.configurable import types_of
from trainer.values.words import describe

PATH = pathlib.Path(__file__).parents[1] / "docs/reference/parameters.md"
# What the command line itself gives to `run`.
_NOT_IN_GIN = {"run.mode", "run.model_dir"}
_HEAD = """\
# Parameters

A gin file can set these parameters, as in `Trainer.batch_size = 64`. In Python
they are keyword arguments of the same names. Some can also be set by flags such
as `--batch_size` (see `--help`; `--mixed_precision` sets `Trainer.precision`).
A run's `operative_config.gin` records the values that were used.

Keras classes (`Adam.learning_rate`), your own functions and your own subclasses
of `Trainer` have the parameters of their signatures. For how to write a
*period*, see [Events, periods and host
loops](events.md#how-do-i-write-a-period).

The column *Valid* is what the checks use. A wrong value is rejected before
anything is built, with the file and line that set it. The checks are strict:
`True` is not 1, and no number may be NaN or infinite. A whole number must fit
in 64 bits, a number in a float32, and a time is at most 1e9 seconds. [Your own
plugins](../extend/parameters.md) can have the same checks.

This page is made from the code by `python -m tests.parameters`.
"""
_INTRODUCTIONS = {
    "run": "The flags and their help are made from the same list, in "
    "`trainer/run_options.py`.",
    "Guard": "See [What can a run do when training diverges?](../fix/nan.md"
    "#what-can-a-run-do-when-training-diverges-the-guard)",
    "Callbacks and loggers": "See [callbacks](../extend/callback.md) and "
    "[loggers](../runs/loggers.md).",
    "Strategies": "It is easiest to set `devices`, `tpu`, the hosts and the "
    "task by flags or `run.*`, which do not depend on the strategy.",
}
# Where there is more about a parameter.
_PAGES = {
    "Trainer.model": "../train/model.md",
    "Trainer.data": "../train/data.md",
    "Trainer.loss": "../train/loss.md",
    "Trainer.optimizer": "../train/schedules.md",
    "Trainer.strategy": "../scale/strategies.md",
    "Trainer.added_losses": "../train/layers.md",
    "Trainer.jit_compile": "compiled_forms.md",
    "Trainer.run_eagerly": "../fix/debug.md",
    "Trainer.probe": "../scale/what_stays_equal.md",
    "Trainer.recompute": "../fix/out_of_memory.md",
    "Trainer.accumulation_steps": "../fix/out_of_memory.md",
    "run.eval_every": "../runs/evaluate.md",
    "run.init_from": "../runs/init_from.md",
    "Checkpoint.load_best": "../runs/checkpoints.md",
    "MultiWorkerMirrored.min_workers": "../scale/elastic.md",
}


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    for title, owners in _groups().items():
        rows = [row for name, one in owners.items() for row in _rows(name, one)]
        more = _INTRODUCTIONS.get(title)
        parts += [f"## {title}\n", *([f"{more}\n"] if more else [])]
        parts.append(
            "| Parameter | Default | Valid | Meaning |\n|---|---|---|---|\n"
            + "".join(rows)
        )
    return "\n".join(parts)


def _groups():
    plugins = [
        one
        for one in load_plugins().values()
        if one.__module__.startswith("trainer_plugins.")
    ]
    plugins.sort(key=lambda one: one.__name__.lower())
    strategies, others = {}, {}
    for one in plugins:
        here = strategies if ".strategies" in one.__module__ else others
        here[one.__name__] = one
    return {
        "Trainer": {"Trainer": Trainer},
        "run": {"run": build},
        "Guard": {"Guard": Guard},
        "Callbacks and loggers": others,
        "Strategies": strategies,
    }


def _rows(owner, one):
    meanings = (
        {name: facts.about for name, (_, facts) in _options().items()}
        if owner == "run"
        else _documented(one)
    )
    for parameter in inspect.signature(one).parameters.values():
        name = f"{owner}.{parameter.name}"
        # A class without a constructor has `*args, **kwargs`.
        kinds = parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD
        if parameter.kind in kinds or name in _NOT_IN_GIN:
            continue
        meaning = meanings[parameter.name]
        meaning = meaning[:1].upper() + meaning[1:]
        if name in _PAGES:
            meaning += f" [More]({_PAGES[name]})"
        valid = describe(types_of(one)[parameter.name])
        cells = f"`{name}`", _default(parameter.default), valid, meaning
        yield f"| {' | '.join(cells)} |\n"


def _options():
    return declared_in(RunOptions)


def _documented(one):
    """What a docstring says about each argument."""
    text = f"{inspect.getdoc(one)}\n"
    found = re.search(r"^Args:\n((?:    .*\n|\n)*)", text, re.MULTILINE)
    parts = re.split(r"^ {4}(\w+): ", found[1], flags=re.M) if found else [""]
    return {
        name: " ".join(about.split())
        for name, about in zip(parts[1::2], parts[2::2], strict=True)
    }


def _default(value):
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, type):
        return f"`@{value.__name__}`"
    return f"`{value!r}`"


if __name__ == "__main__":
    PATH.write_text(page())
