"""`--init_from`: starts a new run with weights of another run or file."""

import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

import keras
import tensorflow as tf
from absl import logging

from trainer.checkpoint.structure import describe
from trainer.checkpoint.weights_reader import StoredVariable, open_model
from trainer.errors import UserError
from trainer.runtime.files import make_directory, write_whole
from trainer.step.keras.private import all_layers
from trainer.step.spec import Parts

REPORT_NAME = "init_report.json"
_NUMBER = re.compile(r"_\d+$")  # What Keras appends: dense, dense_1, dense_2.


class NewRun(Protocol):
    """A run that takes over weights, such as a `trainer.Trainer`."""

    @property
    def parts(self) -> Parts:
        """Model, optimizers, metrics and state variables."""

    def restart_optimizers(self) -> None:
        """Resets the optimizers to their initial state for the weights."""


@dataclasses.dataclass
class InitReport:
    """What became of each variable of the model, and of the file.

    Paths begin below the model. Each entry is a `path` with a `shape`; where
    the name or the shape in the file is another, `path_there` and
    `shape_there` say so.

    Attributes:
        source: what was read.
        init_only: which variables were selected; `None` means all.
        loaded: have the value from the file.
        shape_differs: stay new, because their shape in the file differs.
        not_found: stay new, because the file has none of that path.
        not_selected: stay new, because `init_only` leaves them out.
        not_used: are only in the file, or `init_only` leaves them out.
    """

    source: str
    init_only: str | None
    loaded: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    shape_differs: list[dict[str, Any]] = dataclasses.field(
        default_factory=list
    )
    not_found: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    not_selected: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    not_used: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def table(self) -> str:
        """The report as text, one line for each variable."""
        kinds = {
            "loaded": self.loaded,
            "shape differs": self.shape_differs,
            "not there": self.not_found,
            "not selected": self.not_selected,
            "not used": self.not_used,
        }
        return "\n".join(
            f"  {kind:<13} {_as_text(entry)}"
            for kind, entries in kinds.items()
            for entry in entries
        )

    def write(self, model_dir: str) -> None:
        """Writes the report to `model_dir/init_report.json`."""
        make_directory(model_dir)
        write_whole(
            os.path.join(model_dir, REPORT_NAME),
            json.dumps(dataclasses.asdict(self), indent=1) + "\n",
        )


def initialize_from(
    trainer: NewRun, path: str, *, only: str | None = None
) -> InitReport:
    """Fills the model with the weights from another run or a file.

    Variables are matched by path below the model, so that a part of a model
    will do. If not all are found, and the shapes are the same in the same
    order, it may be the same model with layers that Keras has numbered
    differently or a user has renamed: then the order decides, unless a name
    contradicts it.

    Args:
        trainer: its model is filled; optimizer and step are new.
        path: see `trainer.checkpoint.weights_reader.open_model`.
        only: a regular expression for the whole path of a variable below the
            model, such as `"encoder/.*"`; others stay new.

    Returns:
        What was loaded and what was not; the log has it too.

    Raises:
        UserError: there is nothing to read, `only` selects nothing, or
            nothing that it selects fits.
    """
    model = trainer.parts.model
    variables = list(model.variables)
    ours = _below([describe(v)["path"] for v in variables], {model.name})
    selected = _select(ours, only)
    # Bounds what is read from an archive; see `open_model`.
    size = sum(
        math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables
    )
    # Open until all is filled: each array is read when it is needed.
    with open_model(path, model_bytes=size) as (source, stored):
        report = InitReport(source, only)
        _fill(model, ours, selected, stored, report)
    if not report.loaded:
        raise UserError(_nothing_fits(path, report))
    # An optimizer may have slots that begin at the weights, as the averages do.
    trainer.restart_optimizers()
    if trainer.parts.ema is not None:
        trainer.parts.ema.restart()
    # What the user did not select is expected to stay new; the rest is not.
    logging.log(
        logging.WARNING
        if report.shape_differs or report.not_found
        else logging.INFO,
        "Initialized %d of %d model variables from %s.\n%s",
        len(report.loaded),
        len(variables),
        source,
        report.table(),
    )
    return report


def _fill(
    model: keras.Model,
    ours: list[str],
    selected: set[str],
    stored: list[StoredVariable],
    report: InitReport,
) -> None:
    """Assigns what fits, and notes what became of each variable."""
    variables = list(model.variables)
    # A model may have another name than the one that was saved.
    theirs = _without_model_name(stored, ours)
    # Keras names layers after their classes: these names may be renumbered.
    kinds = {type(layer).__name__.lower() for layer in all_layers(model)}
    shapes = [tuple(variable.shape) for variable in variables]
    places = _match(ours, shapes, theirs, kinds=kinds)
    for i, name in enumerate(ours):
        entry = {"path": name, "shape": describe(variables[i])["shape"]}
        if name not in selected:
            report.not_selected.append(entry)
        elif i not in places:
            report.not_found.append(entry)
        else:
            there = theirs[places[i]]
            # Only now is the array read: its shape is known to be ours.
            if _put(entry, there):
                variables[i].assign(there.read())
                report.loaded.append(entry)
            else:
                report.shape_differs.append(entry)
    used = {places[i] for i in places if ours[i] in selected}
    report.not_used = [
        {"path": one.path, "shape": list(one.shape)}
        for i, one in enumerate(theirs)
        if i not in used
    ]


def _put(entry: dict[str, Any], there: StoredVariable) -> bool:
    """Notes where a value comes from; returns whether its shape fits."""
    if there.path != entry["path"]:
        entry["path_there"] = there.path
    shape = list(there.shape)
    if shape == entry["shape"]:
        return True
    entry["shape_there"] = shape
    return False


def _below(paths: list[str], models: set[str]) -> list[str]:
    """Paths without the model's name, if all begin with it."""
    first = {path.partition("/")[0] for path in paths if "/" in path}
    if len(first) == 1 and first <= models and all("/" in p for p in paths):
        return [path.partition("/")[2] for path in paths]
    return paths


def _without_model_name(
    stored: list[StoredVariable], ours: list[str]
) -> list[StoredVariable]:
    """Drops a first name that all share, unless ours has such a layer."""
    layers = {path.partition("/")[0] for path in ours}
    paths = [one.path for one in stored]
    shared = {path.partition("/")[0] for path in paths} - layers
    below = _below(paths, shared)
    return [
        StoredVariable(path, one.shape, one.read)
        for path, one in zip(below, stored, strict=True)
    ]


def _match(
    ours: list[str],
    shapes: list[tuple[int, ...]],
    theirs: list[StoredVariable],
    *,
    kinds: set[str],
) -> dict[int, int]:
    """For each of our variables, the index of its value among theirs."""
    there = {one.path: i for i, one in enumerate(theirs)}
    places = {
        i: there[name]
        for i, names in enumerate(zip(ours, _numbered(ours), strict=True))
        for name in names
        if name in there
    }
    # From here on: same shapes in the same order, and names that differ.
    if len(places) == len(ours) or shapes != [v.shape for v in theirs]:
        return places
    # No name contradicts the order: those that match are at their own index.
    in_order = all(i == place for i, place in places.items())
    # Or names differ only in the numbers that Keras appends.
    counted_up = all(
        _uncounted(name, kinds) == _uncounted(one.path, kinds)
        for name, one in zip(ours, theirs, strict=True)
    )
    if in_order or counted_up:
        return {i: i for i in range(len(ours))}
    return places


def _uncounted(path: str, kinds: set[str]) -> str:
    """A path without the numbers that Keras appends to automatic names.

    Args:
        path: of a variable.
        kinds: the layers' class names in lower case; Keras names a layer
            after its class if the user does not name it.
    """
    parts = path.split("/")
    for i, part in enumerate(parts):
        name = _NUMBER.sub("", part)
        if name.replace("_", "") in kinds:
            parts[i] = name
    return "/".join(parts)


def _numbered(paths: list[str]) -> list[str]:
    """`encoder/1` for its second variable, as Keras files count them."""
    seen: Counter[str] = Counter()
    numbered = []
    for path in paths:
        layer = path.rpartition("/")[0]
        numbered.append(f"{layer}/{seen[layer]}".lstrip("/"))
        seen[layer] += 1
    return numbered


def _select(ours: list[str], only: str | None) -> set[str]:
    if only is None:
        return set(ours)
    try:
        pattern = re.compile(only)
    except re.error as error:
        raise UserError(
            f"run.init_only = {only!r} is not a regular expression: {error}."
        ) from None
    selected = set(filter(pattern.fullmatch, ours))
    if not selected:
        raise UserError(
            f"run.init_only = {only!r} does not match the whole path of any "
            f"variable of the model. It has: {_some(ours)}."
        )
    return selected


def _nothing_fits(path: str, report: InitReport) -> str:
    wanted = report.not_found + report.shape_differs
    return (
        f"init_from = {path!r}: no variable there has a path and shape of "
        f"this model. It holds: {_some(map(_as_text, report.not_used))}; "
        f"wanted: {_some(map(_as_text, wanted))}."
    )


def _as_text(entry: dict[str, Any]) -> str:
    text = f"{entry['path']} {entry['shape']}"
    if "path_there" in entry:
        text += f", there named {entry['path_there']}"
    if "shape_there" in entry:
        text += f", there {entry['shape_there']}"
    return text


def _some(entries: Iterable[str]) -> str:
    shown = list(entries)
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
