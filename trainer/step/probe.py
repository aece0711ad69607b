"""The probe: tries the promise that a batch may be cut in any way.

Whether layers, losses and metrics treat examples separately cannot be seen
from their code. So before a step is traced some examples of the first batch go
through it, once whole and once in uneven parts, as replicas or micro-batches
would have them (`trainer.step.probe_runs`), and what comes out is compared:
outputs of layers row by row, what they assign and add to the loss, losses,
metrics, and the gradients of an overridden `train_step`. Layers are called
several times, and nothing is changed by it.
"""

import re
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.data.batches import count_rows, not_per_example, take_rows
from trainer.errors import UserError
from trainer.step.keras.private import native
from trainer.step.metrics.states import initial_state, updated
from trainer.step.probe_runs import (
    Result,
    Run,
    as_floats,
    largest,
    probing,
    run,
)
from trainer.step.probe_sums import find_decays
from trainer.step.spec import StepSpec

# Rows that are taken; of a model with more numbers than these, fewer.
_ROWS, _FEW_ROWS, _SMALL = 12, 3, 2_000_000
# Rounding that is allowed, relative to the largest number of a tensor.
_UNITS = {"bfloat16": 0.2, "float16": 4e-3}
_UNIT = 1e-4
# By how much rounding may grow from layer to layer.
_GROWTH = 30

# By kind of what differs. Each names it, and says what helps.
_DEPENDS = "so it would depend on the number of replicas and micro-batches"
_OPT_OUT = "Trainer(probe=False) trains it as it is."
_FREE = (
    "Let a model take any number of examples (None in shapes, -1 in reshape, "
    "no state for each example, as stateful RNNs have), or train on one "
    "replica without accumulation_steps."
)
_SENTENCES = {
    "layer": (
        "In the layer {name}, the output of an example depends on the other "
        f"examples of its batch, {_DEPENDS}. Let it reduce over other axes "
        "than the first, gather the examples of all replicas by "
        "Trainer.all_gather, or train on one replica without "
        f"accumulation_steps. {_OPT_OUT}"
    ),
    "variable": (
        "The variable {name!r} keeps a value that is no {how} over the batch, "
        f"{_DEPENDS}. Means, and n = d * n + s for a constant d and a sum s "
        "over the batch, need no declaration; compute all else from such "
        "variables, once they are assigned. Otherwise, declare the variable "
        "where it is made, as in add_weight(..., aggregation='sum'): 'sum' "
        "adds up what replicas add to it, 'mean' takes the mean of their "
        "values, by examples, 'only_first_replica' the first one's."
    ),
    "added": (
        "The layer {name!r} passes a value to add_loss that is no {how} over "
        f"the batch, {_DEPENDS}. Divide a sum by the batch, or declare it: "
        "Trainer.added_losses = {{{name!r}: 'sum'}} adds up what replicas add, "
        f"'mean' takes their mean, by examples. {_OPT_OUT}"
    ),
    "loss": (
        "The loss {name!r} gives an example a different value when the other "
        f"examples of its batch change, {_DEPENDS}. A loss over pairs of "
        "examples or over the batch goes into Trainer.global_loss, which sees "
        "the outputs of all replicas. If it is meant as a loss per example: "
        "make sure that targets and outputs do not broadcast ([batch] with "
        f"[batch, 1]), and do not divide by the batch. {_OPT_OUT}"
    ),
    "gradient": (
        "The gradient of {name!r} differs for parts of a batch, although "
        f"outputs and losses do not, {_DEPENDS}. Look in the train_step for a "
        f"mean that Trainer.gradients does not take. {_OPT_OUT}"
    ),
}


class Probe:
    """The runs of a step over some examples, whole and in parts.

    Args:
        spec: what the step is made of.
        batch: the first global batch, whole.
        training: whether to train or only to evaluate.

    Attributes:
        whole: the run over all of the examples.
        parts: the runs over uneven parts of them.
    """

    def __init__(self, spec: StepSpec, batch: Any, *, training: bool) -> None:
        self._spec, self._training = spec, training
        # Variables that may keep sums over time, by the key of their result.
        self._summed: dict[Hashable, Any] = {}
        parts = tf.nest.flatten(batch)
        numbers = [int(np.prod(one.shape[1:])) for one in parts]
        is_small = spec.model.count_params() + sum(numbers) <= _SMALL
        total = int(count_rows(batch))
        rows = min(_ROWS if is_small else _FEW_ROWS, total)
        # Other parts than examples may refer to rows of it.
        odd = not_per_example(batch) is not None
        is_left_whole = odd and spec.is_whole(training=training)
        if is_left_whole:
            rows = total
        self._batch = take_rows(batch, 0, rows)
        with probing(spec):
            (self.whole,) = self._run(rows)
            if self.whole.error is not None and rows < total:
                # It may be made for batches of this size.
                self._batch, rows = batch, total
                (self.whole,) = self._run(rows)
            # Uneven: equal parts would let a mean of means pass as a mean.
            first = min(rows - 1, -(-rows * 3 // 5))
            self._sizes = [first, rows - first]
            is_one = is_left_whole or not first or self.whole.error is not None
            self.parts = [self.whole] if is_one else self._run(*self._sizes)

    def finding(self) -> str | None:
        """A sentence about what depends on how a batch is cut, if anything.

        Raises:
            UserError: the step refuses the batch.
        """
        error = self.whole.error
        if isinstance(error, UserError):
            raise error
        if error is not None:
            return (
                f"A batch of {len(self.whole.rows)} examples fails"
                f"{_place(self.whole)}, outside of a graph: "
                f"{_first_line(error)}. {_FREE} {_OPT_OUT}"
            )
        self._warn_of_micro_batches()
        with probing(self._spec):
            self._find_decays()
            found = self._compared(self.parts)
            if found is None and self._may_be_empty():
                found = self._compared(self._run(*self._sizes, 0))
                if found is not None:
                    found = (
                        f"Where a replica gets no example of a batch: {found}"
                    )
            # What the whole does not give again cannot be compared.
            again = found and self._compared(self._run(len(self.whole.rows)))
        return None if again else found

    def _run(self, *sizes: int) -> list[Run]:
        return run(self._spec, self._batch, sizes, training=self._training)

    def _warn_of_micro_batches(self) -> None:
        """Names what is assigned to in each of several micro-batches."""
        names = [
            one.name
            for one in self.whole.results.values()
            if one.kind == "variable" and not np.array_equal(one.value, one.old)
        ]
        if names and self._training and self._spec.accumulation_steps > 1:
            logging.warning(
                "The forward pass assigns to %s%s: with accumulation_steps = "
                "%d once for each micro-batch, where fit assigns once a batch.",
                ", ".join(names[:3]),
                f" and {len(names) - 3} more" * (len(names) > 3),
                self._spec.accumulation_steps,
            )

    def _find_decays(self) -> None:
        """Notes which variables keep sums over time."""
        spec = self._spec
        if spec.plugin.num_replicas == 1 or len(self.parts) == 1:
            return  # Micro-batches assign one after the other.
        _, _, unit = _mixing(self.whole, self.parts)
        odd = self._odd_results(self.parts, unit, kinds=("variable",))
        self._summed = {
            key: one.variable
            for key, one in self.whole.results.items()
            if one.variable is not None and (one.how == "sum" or key in odd)
        }
        if self._summed:
            tried = self._batch, [*self._summed.values()], self._sizes
            spec.parts.decays.update(find_decays(spec, *tried, unit))

    def _may_be_empty(self) -> bool:
        """Whether a replica may get no example of a batch."""
        spec, training = self._spec, self._training
        if spec.options.static_shapes or len(self.parts) == 1:
            return False
        last = spec.batches("train" if training else "eval").last_size
        micro = spec.accumulation_steps if training else 1
        return last is None or last < spec.plugin.num_replicas * micro

    def _compared(self, parts: Sequence[Run]) -> str | None:
        """A sentence about what differs between the whole and some parts."""
        failure = _failure(parts)
        if failure is not None:
            return failure
        # What is made of a stand-in counts nothing.
        parts = [one for one in parts if one.rows]
        layer, is_seen, unit = _mixing(self.whole, parts)
        odd = self._odd_results(parts, unit)
        causes = [*odd]
        # Rows that only change places within the model are no reason: what
        # comes out must differ.
        if layer is not None and (causes or is_seen):
            own = [id(one) for one in getattr(layer, "variables", ())]
            causes = [key for key in own if key in odd]
            if not causes:
                return _SENTENCES["layer"].format(name=_named(layer))
        if not causes:
            return None
        one = odd[causes[0]]
        how = "sum" if one.how == "sum" else "mean"
        return _SENTENCES[one.kind].format(name=one.name, how=how)

    def _odd_results(
        self,
        parts: Sequence[Run],
        unit: float,
        *,
        kinds: Sequence[str] = ("variable", "added", "loss", "gradient"),
    ) -> dict[Hashable, Result]:
        """The results that parts do not give together, causes first."""
        odd, decays = {}, self._spec.parts.decays
        for kind in kinds:
            if kind == "variable" and self._spec.plugin.num_replicas == 1:
                continue  # Micro-batches assign one after the other.
            results = {
                key: one
                for key, one in self.whole.results.items()
                if one.kind == kind
            }
            # What changes little has the rounding of what changes much.
            changes = [one.value - one.old for one in results.values()]
            beside = max(map(largest, changes), default=0.0) / 10
            for (key, one), change in zip(
                results.items(), changes, strict=True
            ):
                values = [
                    part.results[key].value if key in part.results else one.old
                    for part in parts
                ]
                decay = None
                if one.variable is not None:
                    decay = decays.get(id(native(one.variable)))
                got = _joined(one, values, parts, decay)
                scale = beside + 1e-2 * largest(one.old)
                is_lost = decay is None and len(parts) > 1
                is_lost &= one.how == "sum" and key in self._summed
                if is_lost or _error(change, got - one.old, scale) > unit:
                    odd[key] = one
        return odd


def adds_up(
    metric: keras.Metric, whole: Sequence[Any], parts: Sequence[Sequence[Any]]
) -> bool:
    """Tries whether a metric's state is a sum over examples.

    An update must add the same whatever the state is, and the update by a
    batch must be the sum of the updates by its parts. A running maximum lacks
    the first, a mean of batch values the second.

    Args:
        metric: a built metric.
        whole: the updates that a batch makes.
        parts: those that its parts make.
    """
    start = initial_state(metric)
    # Booleans and strings have no sum. NumPy calls bfloat16 a void, "V".
    if any(v.dtype.kind not in "fiuV" for v in start):
        return False

    def added(state: Sequence[np.ndarray], calls: Any) -> list[np.ndarray]:
        after = updated(metric, state, calls)
        pairs = zip(state, after, strict=True)
        return [as_floats(b) - as_floats(a) for a, b in pairs]

    first = added(start, whole)
    # Infinities and NaNs could hide a difference.
    if not all(np.isfinite(one).all() for one in first):
        return False
    of_parts = zip(*(added(start, one) for one in parts), strict=True)
    totals = [[np.sum(same, 0) for same in of_parts]]
    # States below and above the values, one of them uneven.
    far = 1 + max(map(largest, first), default=0.0)
    for distance in (1, 3 * far, -300 * far):
        state = [
            (s + np.abs(a) + distance * (s.dtype.kind != "u")).astype(s.dtype)
            for s, a in zip(start, first, strict=True)
        ]
        totals.append(added(state, whole))
    return all(
        _error(one, other, 40 * far) < 1e-5
        for total in totals
        for one, other in zip(first, total, strict=True)
    )


def _mixing(whole: Run, parts: Sequence[Run]) -> tuple[Any, bool, float]:
    """Looks for a layer that mixes examples.

    Returns:
        The first one, or `None`; whether a difference is left in what the
        outermost layer returns; and what is rounding from here on.
    """
    dtypes = [getattr(one.layer, "compute_dtype", "") for one in whole.tensors]
    unit = max((_UNITS.get(one, _UNIT) for one in dtypes), default=_UNIT)
    layer, is_seen, rounding = None, False, 0.0
    for made, *same in zip(
        whole.tensors, *(part.tensors for part in parts), strict=False
    ):
        others = [one.value for one in same]
        joined = _rows(made.value, others, parts)
        if joined is None:
            continue
        error = _error(made.value, joined, made.beside)
        is_odd = error > max(unit, _GROWTH * rounding)
        is_seen |= is_odd and made.is_final
        if layer is None and len(made.value) == len(whole.rows):
            if is_odd:
                layer = made.layer
            else:
                relative = made.beside / max(largest(made.value), 1e-30)
                rounding = max(rounding, min(1.0, error * max(1.0, relative)))
    return layer, is_seen, max(unit, _GROWTH * rounding)


def _failure(parts: Sequence[Run]) -> str | None:
    """A sentence about a part that fails, if one does."""
    for part in parts:
        # Others then wait for it in vain.
        if part.error is None or isinstance(
            part.error, threading.BrokenBarrierError
        ):
            continue
        if isinstance(part.error, UserError):
            raise part.error
        what = "another number of examples" if part.rows else "no example"
        return (
            f"A part of the batch with {what} fails{_place(part)}: "
            f"{_first_line(part.error)}. {_FREE}"
        )
    return None


def _place(run: Run) -> str:
    """In which layer a run fails, after a space."""
    layers = run.under_way[-1:]
    return f" in the layer {_named(layers[0])}" if layers else ""


def _first_line(error: BaseException | None) -> str:
    # Without colours, and the names of TensorFlow's operations.
    text = re.sub(r"\x1b\[\d+m|\{\{.*?\}\} *| *\[Op:.*", "", str(error))
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith("Exception encountered")
    ]
    return lines[0][:160].rstrip(" .") if lines else type(error).__name__


def _named(layer: Any) -> str:
    return f"{layer.name!r} ({type(layer).__name__})"


def _joined(
    result: Result,
    values: Sequence[Any],
    parts: Sequence[Run],
    decay: float | None,
) -> np.ndarray:
    """What the values of replicas become."""
    if result.how == "rows":
        # Rows that do not fit, such as those of all pairs, are other values.
        joined = _rows(result.value, values, parts)
        return np.array(np.inf) if joined is None else joined
    some = [
        (len(part.rows), value)
        for part, value in zip(parts, values, strict=True)
    ]
    if result.how == "first":
        return some[0][1]
    if result.how == "sum" or decay is not None:
        kept = result.old * (1.0 if decay is None else decay)
        return kept + sum(value - kept for _, value in some)
    return sum(n * value for n, value in some) / sum(n for n, _ in some)


def _rows(
    whole: np.ndarray, others: Sequence[np.ndarray], parts: Sequence[Run]
) -> np.ndarray | None:
    """The rows of parts one after the other, as the whole has them.

    Returns:
        `None` where no axis is that of examples.
    """
    sizes = [len(part.rows) for part in parts]
    for axis in range(min(2, whole.ndim)):
        shapes = []
        for size in sizes:
            shape = [*whole.shape]
            # An axis may be that of examples and of others, such as windows.
            shape[axis] = shape[axis] * size / sum(sizes)
            shapes.append(tuple(shape))
        if [one.shape for one in others] == shapes:
            return np.concatenate(others, axis)
    return None


def _error(left: np.ndarray, right: np.ndarray, scale: float) -> float:
    """The largest difference, relative to the largest number.

    It is infinite where what must be equal is not.
    """
    if left.shape != right.shape:
        return np.inf
    if (np.isfinite(left) != np.isfinite(right)).any():
        return np.inf
    with np.errstate(invalid="ignore"):
        off = np.abs(np.nan_to_num(left - right))
    return float(np.max(off, initial=0.0)) / max(largest(left), scale, 1e-30)
