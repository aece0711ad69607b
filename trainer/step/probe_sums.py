"""Finds variables that keep sums over time: `n = d * n + s`.

The codebook of a VQ-VAE counts like this. What replicas add up is `s`, a sum
over the batch; the old value counts once, however many they are. The two are
told apart by trials in which such variables hold other numbers.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.step.keras.private import native
from trainer.step.probe_runs import Result, as_floats, run
from trainer.step.spec import StepSpec

# So large that nothing is left of `s`; squares are still finite.
_FAR, _WIDE = 2.0**40, 2.0**100
_LATER = 1000  # Steps by which whatever counts them is ahead.


def find_decays(
    spec: StepSpec,
    batch: Any,
    variables: Sequence[Any],
    sizes: Sequence[int],
) -> dict[int, float]:
    """The factors `d` of those that keep such a sum, by the variable's id.

    Args:
        spec: what the step is made of.
        batch: examples.
        variables: those that may, of Keras or of TensorFlow.
        sizes: of uneven parts, which make up the batch.
    """

    def tried(change: Callable[..., Any], *others: Any) -> list[Any]:
        changes = [*others, *((one, change) for one in variables)]
        with _holding(spec, changes):
            (whole,) = run(spec, batch, [sum(sizes)], training=True)
            parts = run(spec, batch, sizes, training=True)
        return [whole.results, *(one.results for one in parts)]

    ids = {id(one): id(native(one)) for one in variables}
    others = [
        spec.parts.step,
        *(one.iterations for one in spec.parts.optimizers.values()),
        *(v for v in spec.model.non_trainable_variables if id(v) not in ids),
    ]
    near, far = tried(_nearby), tried(_far)
    far += tried(_far, *((one, _later) for one in others))
    found = {}
    for key, number in ids.items():
        if all(key in one for one in near + far):
            decay = _decay([one[key] for one in far])
            if _adds_up([one[key] for one in near], decay):
                found[number] = decay
    return found


def _decay(far: Sequence[Result]) -> float:
    """What large numbers are multiplied by, if it is always the same."""
    with np.errstate(all="ignore"):  # An integer has no large numbers.
        factors = [one.value / one.old for one in far]
    decay = float(np.ravel(factors[0])[0])
    is_one = all(np.allclose(one, decay, rtol=1e-6) for one in factors)
    return decay if is_one else 1.0


def _adds_up(near: Sequence[Result], decay: float) -> bool:
    """Whether parts together add to the old value what the whole adds."""
    whole, *added = (one.value - decay * one.old for one in near)
    largest = np.max(np.abs(whole)) + 1e-2 * np.max(np.abs(near[0].old))
    return bool(np.allclose(sum(added), whole, rtol=0, atol=1e-4 * largest))


@contextlib.contextmanager
def _holding(
    spec: StepSpec, changes: Sequence[tuple[Any, Callable[..., Any]]]
) -> Iterator[None]:
    """Lets variables hold other numbers."""
    natives = [(native(one), change) for one, change in changes]
    with spec.plugin.scope():
        before = [(one, one.read_value()) for one, _ in natives]
    try:
        with spec.plugin.scope():
            for variable, change in natives:
                if variable.dtype.is_floating or variable.dtype.is_integer:
                    far = _WIDE if variable.dtype == tf.float64 else _FAR
                    new = change(as_floats(variable.read_value()), far)
                    variable.assign(tf.cast(new, variable.dtype))
        yield
    finally:
        with spec.plugin.scope():
            for variable, value in before:
                variable.assign(value)


def _uneven(value: np.ndarray) -> np.ndarray:
    """1, 2, 4, and so on: powers of two leave the digits of a factor."""
    return np.exp2(np.arange(value.size) % 3).reshape(value.shape)


def _nearby(value: np.ndarray, _: float) -> np.ndarray:
    return value + _uneven(value)


def _far(value: np.ndarray, far: float) -> np.ndarray:
    return far * _uneven(value)


def _later(value: np.ndarray, _: float) -> np.ndarray:
    return value + _LATER
