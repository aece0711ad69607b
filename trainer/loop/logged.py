"""Values given to `trainer.log`, kept until they are logged."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from absl import logging

from trainer.errors import UserError
from trainer.values.words import shown

Kind: TypeAlias = Literal["scalar", "image", "histogram", "text", "audio"]

_BUCKETS = 30  # As in TensorBoard.
# What all loggers take, MLflow's being the narrowest.
_NAME = re.compile(r"[A-Za-z0-9][\w\-./ ]*", re.ASCII)
# What else a line of a log holds.
_COLUMNS = ("step", "split", "final")


@dataclasses.dataclass(frozen=True)
class Media:
    """A value that is not a number.

    Attributes:
        kind: what it is.
        data: `"image"`: uint8 of shape `[images, height, width, channels]`,
            with 1, 3 or 4 channels. `"histogram"`: float64 of shape
            `[buckets, 3]`, each bucket's left edge, right edge and count.
            `"text"`: a string. `"audio"`: float32 of shape `[frames,
            channels]`, from -1 to 1.
        sample_rate: of audio, in frames per second.
    """

    kind: Literal["image", "histogram", "text", "audio"]
    data: Any
    sample_rate: int = 0


Value: TypeAlias = float | Media


def check_name(name: Any, whose: str) -> None:
    """Checks the name of a value, whoever gives it.

    Args:
        name: of a value, as it is logged.
        whose: begins the sentence.

    Raises:
        UserError: not every logger takes it.
    """
    is_name = isinstance(name, str) and _NAME.fullmatch(name)
    if not is_name or name in _COLUMNS:
        raise UserError(
            f"{whose} the name {shown(name)}. Valid: letters, digits, spaces "
            "and any of _ - . / after a letter or a digit, such as "
            f"'norms/dense', but not {', '.join(_COLUMNS)}."
        )


def check_words(name: Any, *, kind: str | None) -> None:
    """Checks the name and the kind of a value.

    Not by `checked`, whose errors AutoGraph cannot pass on.

    Raises:
        UserError: not every logger takes the name, or a word is not valid.
    """
    check_name(name, "trainer.log got")
    valid = get_args(Kind)
    if kind is not None and kind not in valid:
        raise UserError(
            f"trainer.log({name!r}, ...) has kind = {shown(kind)}. Valid: "
            f"{', '.join(map(repr, valid))}."
        )


def as_value(
    name: str, value: Any, *, kind: Kind | None, sample_rate: int | None
) -> Value:
    """A value in the form that loggers take.

    Args:
        name: what it is logged under.
        value: a number, a string, or whatever NumPy makes an array of.
        kind: what it is; a number or a string need not say.
        sample_rate: of audio.

    Raises:
        UserError: it is not of its kind, or does not say of which.
    """
    if isinstance(value, Media):
        return value
    what = f"trainer.log({name!r}, ...)"
    if (sample_rate is not None) != (kind == "audio"):
        raise UserError(
            f"{what}: audio needs a sample_rate, in frames per second, and "
            "nothing else has one."
        )
    if isinstance(value, str) and kind in (None, "text"):
        return Media("text", value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, NotImplementedError):
        array = np.asarray(None)
    is_number = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    if kind == "text" or not is_number:
        raise UserError(
            f"{what} got {shown(value)}. Valid: a number; a string; or an "
            "array of numbers, with kind='image', 'histogram' or 'audio'."
        )
    if kind in (None, "scalar"):
        if array.size != 1:
            raise UserError(
                f"{what} got an array of shape {array.shape}. A scalar has one "
                "number; for an array, pass kind='image', 'histogram' or "
                "'audio'."
            )
        return float(array.reshape(()))
    if kind == "image":
        return Media("image", _images(what, array))
    if kind == "histogram":
        return Media("histogram", histogram(array))
    return _audio(what, array, sample_rate)


def _images(what: str, array: np.ndarray) -> np.ndarray:
    """`[images, height, width, channels]`, as uint8."""
    shape = array.shape
    if array.ndim == 2:
        array = array[..., np.newaxis]
    if array.ndim == 3:
        array = array[np.newaxis]
    if array.ndim != 4 or array.shape[-1] not in (1, 3, 4) or not array.size:
        raise UserError(
            f"{what}: an image has the shape (height, width), (height, width, "
            "channels) or (images, height, width, channels), with 1, 3 or 4 "
            f"channels, not {shape}."
        )
    if array.dtype == np.uint8:
        return array
    numbers = array.astype(np.float32)
    lowest, highest = float(numbers.min()), float(numbers.max())
    # False for NaN, too.
    is_unit = lowest >= 0 and highest <= 1 and array.dtype.kind not in "biu"
    if not is_unit:
        raise UserError(
            f"{what}: an image is of uint8, or of floats from 0 to 1, not of "
            f"{array.dtype} from {lowest:g} to {highest:g}."
        )
    return np.round(numbers * 255).astype(np.uint8)


def histogram(array: Any) -> np.ndarray:
    """A histogram of the finite values: see `Media.data`."""
    numbers = np.asarray(array, np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return np.zeros((0, 3))
    try:
        counts, edges = np.histogram(numbers, bins=_BUCKETS)
    # There are not so many numbers between the least and the greatest.
    except ValueError:
        return np.array([[numbers.min(), numbers.max(), numbers.size]])
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def _audio(what: str, array: np.ndarray, sample_rate: int | None) -> Media:
    sound = array[:, np.newaxis] if array.ndim == 1 else array
    loudest = np.abs(sound.astype(np.float32)).max(initial=0.0)
    if sound.ndim != 2 or not sound.size or not loudest <= 1:
        raise UserError(
            f"{what}: audio has the shape (frames,) or (frames, channels), and "
            f"values from -1 to 1, not the shape {array.shape} and values up "
            f"to {loudest:g}."
        )
    if not isinstance(sample_rate, int) or sample_rate < 1:
        raise UserError(f"{what}: sample_rate = {sample_rate!r} must be >= 1.")
    return Media("audio", sound.astype(np.float32), sample_rate)


class Logged:
    """Values that no log holds yet, each with its step.

    Attributes:
        of_epoch: the newest numbers of this epoch.
    """

    def __init__(self) -> None:
        self.of_epoch: dict[str, float] = {}
        self._waiting: dict[tuple[int, str], dict[str, Value]] = {}

    def add(self, step: int, split: str, name: str, value: Value) -> None:
        """Keeps a value; the newest of a name and a step."""
        self._waiting.setdefault((step, split), {})[name] = value

    def take_numbers(
        self, step: int, split: str, *, keep: bool = False
    ) -> dict[str, float]:
        """Returns the numbers of a step, and removes them unless kept."""
        waiting = self._waiting.get((step, split), {})
        found = _numbers(waiting)
        for name in () if keep else found:
            del waiting[name]
        return found

    def take_all(self) -> list[tuple[int, str, dict[str, Value]]]:
        """Removes and returns what is left, in the order of its steps."""
        found = [(*k, values) for k, values in self._waiting.items() if values]
        self._waiting = {}
        return sorted(found, key=lambda one: one[0])

    def forget(self, split: str) -> None:
        """Drops what will be logged again."""
        kept = {k: v for k, v in self._waiting.items() if k[1] != split}
        self._waiting = kept

    def warn_of_lost(self) -> None:
        """Says which media a run takes with it that leaves here."""
        lost = {
            name
            for values in self._waiting.values()
            for name, value in values.items()
            if isinstance(value, Media)
        }
        if lost:
            logging.warning(
                "The run exits before its loggers have received %s: it was "
                "logged in the last host loop, and is not in the checkpoint.",
                ", ".join(sorted(lost)),
            )

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as JSON values, without media."""
        waiting = [
            {"step": step, "split": split, "values": numbers}
            for (step, split), values in self._waiting.items()
            if (numbers := _numbers(values))
        ]
        return {"waiting": waiting, "of_epoch": dict(self.of_epoch)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned; a misfit was refused before."""
        self.of_epoch = dict(state.get("of_epoch", {}))
        self._waiting = {
            (one["step"], one["split"]): dict(one["values"])
            for one in state.get("waiting", [])
        }


def _numbers(values: Mapping[str, Value]) -> dict[str, float]:
    return {n: v for n, v in values.items() if isinstance(v, float)}


def numbers_of(event: str, logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns values that callbacks left in an event's logs, as numbers.

    Raises:
        UserError: a value is not a number, or not every logger takes its name.
    """
    found = {}
    for name, value in logs.items():
        check_name(name, f"A metric, or a callback in {event}, has logged")
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise UserError(
                f"A callback has set logs[{name!r}] = {shown(value)} in "
                f"{event}. Logs hold numbers; for all else, call trainer.log."
            )
        found[name] = float(array.reshape(()))
    return found
