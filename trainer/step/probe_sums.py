"""Finds variables that keep sums over time: `n = d * n + s`.

The codebook of a VQ-VAE counts like this. What replicas add up is `s`, a sum
over the batch; the old value counts once, however many they are. The two are
told apart by trials in which such variables hold other numbers.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.step.keras.private import native
from trainer.step.probe_runs import Result, as_floats, run
from trainer.step.spec import StepSpec

# So large that nothing is left of `s`; squares are still finite.
_FAR, _WIDE = 2.0**40, 2.0**100
_LATER = 1000  # Steps by which whatever counts them is ahead.
# From an old value, and a number that is large for its type, to a new one.
Change: TypeAlias = Callable[[np.ndarray, float], np.ndarray]


def find_decays(
    spec: StepSpec,
    batch: Any,
    variables: Sequence[Any],
    sizes: Sequence[int],
    unit: float,
) -> dict[int, float]:
    """The factors `d` of those that keep such a sum, by the variable's id.

    Args:
        spec: what the step is made of.
        batch: examples.
        variables: those that may, of Keras or of TensorFlow.
        sizes: of uneven parts, which make up the batch.
        unit: the rounding that is allowed.
    """

    def tried(change: Change, *others: Any) -> list[Any]:
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
    near = tried(lambda old, _: old + _uneven(old))
    far = tried(lambda old, far: far * _uneven(old))
    far += tried(
        lambda old, far: far * _uneven(old),
        *((one, lambda old, _: old + _LATER) for one in others),
    )
    found = {}
    for key, number in ids.items():
        decay = _decay([one.get(key) for one in far])
        if _adds_up([one.get(key) for one in near], decay, unit):
            found[number] = decay
    return found


def _decay(far: Sequence[Result | None]) -> float:
    """What large numbers are multiplied by, if it is always the same."""
    if None in far:  # Such numbers may be none for the step.
        return 1.0
    with np.errstate(all="ignore"):  # An integer has no large numbers.
        factors = [one.value / one.old for one in far if one is not None]
    decay = float(np.ravel(factors[0])[0])
    is_one = all(np.allclose(one, decay, rtol=1e-6) for one in factors)
    # Such numbers are infinite in float16.
    return decay if is_one and np.isfinite(decay) else 1.0


def _adds_up(near: Sequence[Result | None], decay: float, unit: float) -> bool:
    """Whether parts together add to the old value what the whole adds."""
    made = [one for one in near if one is not None]
    if len(made) < len(near):
        return False
    whole, *added = (one.value - decay * one.old for one in made)
    largest = np.max(np.abs(whole)) + 1e-2 * np.max(np.abs(made[0].old))
    return bool(np.allclose(sum(added), whole, rtol=0, atol=unit * largest))


@contextlib.contextmanager
def _holding(spec: StepSpec, changes: Sequence[tuple[Any, Change]]) -> Any:
    """Lets variables hold other numbers."""
    with spec.plugin.scope(), contextlib.ExitStack() as undo:
        for variable, change in ((native(one), how) for one, how in changes):
            if variable.dtype.is_floating or variable.dtype.is_integer:
                old = variable.read_value()
                undo.callback(variable.assign, old)
                far = _WIDE if old.dtype == tf.float64 else _FAR
                new = change(as_floats(old), far)
                variable.assign(tf.cast(new, old.dtype))
        yield


def _uneven(value: np.ndarray) -> np.ndarray:
    """1, 2, 4, and so on: powers of two leave the digits of a factor."""
    return np.exp2(np.arange(value.size) % 3).reshape(value.shape)
