"""Finds out by a trial whether a metric's state adds up.

Where it does, a step returns what its batch adds to the state, and the sums
over replicas and steps are exact. That takes two things: an update must add
the same whatever the state is, and the update by a batch must be the sum of
the updates by its pieces. A running maximum lacks the first, a mean of batch
values the second.
"""

import inspect
from collections.abc import Callable, Sequence

import keras
import ml_dtypes
import numpy as np

from trainer.step.metrics.states import Call, initial_state, updated

Calls = Sequence[Call]
# Rounding errors that are allowed, in units in the last place of a state. A sum
# in another order rounds differently in each addition, hence the larger one.
_SAME_UPDATE, _SAME_SUM = 64, 4096


def declared(metric: keras.Metric) -> bool | None:
    """What a metric says of itself: `additive`, see `trainer.additive`."""
    said = getattr(metric, "additive", None)
    return said if isinstance(said, bool) else None


def is_sum(metric: keras.Metric) -> bool:
    """Whether a metric says that it adds up, or is known to.

    Of Keras' own those are, for outputs of rank 2 or more, but for one that
    wraps a function, or reduces an axis that may be the batch's.
    """
    said, kind = declared(metric), type(metric)
    if said is not None:
        return said
    # Exactly Keras' class: a subclass may override its update.
    if vars(keras.metrics).get(kind.__name__) is not kind or kind in (
        keras.metrics.MeanMetricWrapper,
        keras.metrics.Mean,
        keras.metrics.Sum,
    ):
        return False
    if "axis" in inspect.signature(kind.__init__).parameters:
        return getattr(metric, "axis", None) == -1
    return kind is not keras.metrics.CosineSimilarity


def adds_up(
    metric: keras.Metric, whole: Calls, pieces: Sequence[Calls]
) -> bool:
    """Tries whether a metric's state adds up, on real values.

    Args:
        metric: a built metric.
        whole: the updates that a batch makes.
        pieces: those that its pieces make; some of them may be empty.
    """
    start = initial_state(metric)
    # Booleans and strings have no sum. NumPy calls bfloat16 a void, "V".
    if any(v.dtype.kind not in "fiuV" for v in start):
        return False
    added = _added(metric, start, whole)
    # Infinities and NaNs would compare as different, or hide a difference.
    if not all(np.isfinite(part).all() for part in added):
        return False
    size = _size(whole, added)
    for state in _other_states(start, size):
        again = _added(metric, state, whole)
        scale = [
            np.abs(s) + np.abs(a) for s, a in zip(state, added, strict=True)
        ]
        if not _same(again, added, start, scale, _SAME_UPDATE):
            return False
    # The second condition: the whole is the sum of its pieces.
    parts = [_added(metric, start, piece) for piece in pieces]
    total = [np.sum(part, axis=0) for part in zip(*parts, strict=True)]
    # [pieces and whole, ...] -> the largest number that was added up, per
    # element.
    scale = [
        np.max([np.abs(p) for p in (*part, whole_part)], initial=0.0)
        for *part, whole_part in zip(*parts, added, strict=True)
    ]
    return _same(total, added, start, scale, _SAME_SUM)


def _added(
    metric: keras.Metric, state: list[np.ndarray], calls: Calls
) -> list[np.ndarray]:
    # Differences in float64 are exact for float32 and narrower states.
    after = updated(metric, state, calls)
    return [
        np.array(b, np.float64) - np.array(a, np.float64)
        for a, b in zip(state, after, strict=True)
    ]


def _size(calls: Calls, added: list[np.ndarray]) -> float:
    """The order of magnitude of what the updates are about."""
    found = [1.0, *(float(np.max(np.abs(a), initial=0.0)) for a in added)]
    for leaf in keras.tree.flatten([list(call) for call in calls]):
        if keras.ops.is_tensor(leaf):
            value = np.asarray(keras.ops.convert_to_numpy(leaf))
            if value.dtype.kind in "fiu" and value.size:
                found.append(float(np.max(np.abs(value.astype(np.float64)))))
    return max(one for one in found if np.isfinite(one))


def _other_states(
    start: list[np.ndarray], size: float
) -> list[list[np.ndarray]]:
    """States below and above the values, some of them uneven."""
    random = np.random.default_rng(0)

    def moved(distance: Callable[[tuple[int, ...]], np.ndarray]) -> list:
        found = []
        for v in start:
            # Unsigned numbers would wrap around.
            low = 0 if v.dtype.kind == "u" else None
            value = v.astype(np.float64) + distance(v.shape)
            found.append(np.clip(value, low, None).astype(v.dtype))
        return found

    return [
        moved(lambda shape: np.full(shape, 0.5 * size)),
        moved(lambda shape: np.full(shape, -0.5 * size)),
        moved(lambda shape: np.full(shape, 20.0 * size)),
        moved(lambda shape: np.full(shape, -20.0 * size)),
        moved(lambda shape: size * random.uniform(-3, 3, shape)),
    ]


def _same(
    left: list[np.ndarray],
    right: list[np.ndarray],
    start: list[np.ndarray],
    scale: list[np.ndarray],
    allowed: int,
) -> bool:
    for a, b, v, size in zip(left, right, start, scale, strict=True):
        exact = v.dtype.kind in "iu"
        unit = 0.0 if exact else float(ml_dtypes.finfo(v.dtype).eps)
        # Written so that a NaN counts as a difference.
        if not (np.abs(a - b) <= allowed * unit * size).all():
            return False
    return True
