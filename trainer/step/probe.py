"""The probe: tries the promise that a batch may be cut in any way.

Whether layers, losses and metrics treat examples separately cannot be seen
from their code. So before the first step some examples of the first batch go
through the step itself, once whole and once in uneven parts, as replicas or
micro-batches would have them (`trainer.step.probe_runs`), and what comes out
is compared: outputs of layers row by row, what they assign and add to the
loss, losses, metrics, and where it costs little the gradients. Layers are
called several times, and nothing is changed by it.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.data.batches import take_rows
from trainer.errors import UserError
from trainer.step.losses.loss_terms import kind_of_added
from trainer.step.metrics.states import initial_state, updated
from trainer.step.probe_runs import Call, Run, probing, run
from trainer.step.spec import StepSpec

# Rows that are taken; of a model with more numbers than these, fewer.
_ROWS, _FEW_ROWS, _SMALL = 12, 3, 2_000_000
# Gradients are compared where a pass makes at most so many calls of layers and
# multiplications.
_CALLS, _PRODUCTS = 200, 2e8
# Rounding that is allowed, relative to the largest number of a tensor.
_UNITS = {"bfloat16": 0.2, "float16": 4e-3}
_UNIT = 1e-4
_MOST = 4096  # Of the numbers of an example, which are compared.
# By how much rounding may grow from layer to layer.
_GROWTH = 30
_DEPENDS = "so it would depend on the number of replicas and micro-batches"
_OPT_OUT = "Trainer(probe=False) trains it as it is."


class Probe:
    """The runs of a step over some examples, and what they show.

    Args:
        spec: what the step is made of.
        batch: the first global batch, whole.
        training: whether to train or only to evaluate.

    Attributes:
        rows: how many examples are taken.
    """

    def __init__(self, spec: StepSpec, batch: Any, *, training: bool) -> None:
        self.spec, self._whole_batch, self._training = spec, batch, training
        self._all = int(tf.nest.flatten(batch)[0].shape[0])
        small = _size_of(spec.model, batch) <= _SMALL
        self._take(min(_ROWS if small else _FEW_ROWS, self._all))
        self._first: Run | None = None
        self._parts: list[Run] | None = None

    def _take(self, rows: int) -> None:
        """Takes rows that are spread over the batch."""
        self.rows = rows
        # Uneven: equal parts would let a mean of means pass as a mean.
        size = min(rows - 1, -(-rows * 3 // 5))
        self._sizes = [size, rows - size]
        flat = tf.nest.flatten(self._whole_batch)
        if any(isinstance(one, tf.SparseTensor) for one in flat):
            self.batch = take_rows(self._whole_batch, 0, rows)
            return
        index = np.linspace(0, self._all - 1, rows).astype("int32")
        self.batch = tf.nest.map_structure(
            lambda part: None if part is None else tf.gather(part, index),
            self._whole_batch,
        )

    def findings(self) -> list[str]:
        """Sentences about what depends on how a batch is cut, causes first.

        Raises:
            UserError: the step refuses the batch.
        """
        if self.rows < 2:
            return []
        with probing(self.spec):
            return self._findings()

    def measured(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The updates of metrics by the whole, and by its parts."""
        with probing(self.spec):
            whole = self._whole()
            if whole.error is not None:
                if not self.spec.has_own("train_step"):
                    raise whole.error
                return {}, []
            parts = self._parts_of_whole() if self.rows > 1 else [whole]
        return whole.measured, [part.measured for part in parts]

    def _whole(self) -> Run:
        if self._first is None:
            (self._first,) = self._run(self.rows, training=self._training)
            if self._first.error is not None and self.rows < self._all:
                # It may be made for batches of this size.
                self._take(self._all)
                (self._first,) = self._run(self.rows, training=self._training)
        return self._first

    def _parts_of_whole(self) -> list[Run]:
        if self._parts is None:
            self._parts = self._run(*self._sizes, training=self._training)
        return self._parts

    def _findings(self) -> list[str]:
        training, first, sizes = self._training, self._whole(), self._sizes
        if isinstance(first.error, UserError):
            raise first.error
        if first.error is not None:
            logging.warning(
                "The step could not be tried on %d examples outside of a "
                "graph, so it is not known whether it depends on how a batch "
                "is cut: %s",
                self.rows,
                _first_line(first.error),
            )
            return []
        found = self._judged(first, self._parts_of_whole())
        # What the whole does not give again cannot be compared.
        if found:
            again = self._run(self.rows, training=training)
            return [] if self._judged(first, again) else found
        if training and self._is_cheap(first):
            self._warn_of_gradients(sizes)
        if self._may_be_empty(training):
            parts = self._run(*sizes, 0, training=training)
            empty = "Where a replica gets no example of a batch: "
            found = [empty + one for one in self._judged(first, parts)]
        if not found and training:
            found = self._findings_of_evaluation(sizes)
        return found

    def _run(self, *sizes: int, training: bool, **options: Any) -> list[Run]:
        return run(self.spec, self.batch, sizes, training=training, **options)

    def _findings_of_evaluation(self, sizes: Sequence[int]) -> list[str]:
        (whole,) = self._run(self.rows, training=False)
        if whole.error is not None:
            return []  # An overridden step may call its model otherwise.
        found = self._judged(whole, self._run(*sizes, training=False))
        return [f"In evaluation: {one}" for one in found]

    def _may_be_empty(self, training: bool) -> bool:
        """Whether a replica may get no example of a batch."""
        spec = self.spec
        if spec.options.static_shapes:
            return False
        last = spec.batches("train" if training else "eval").last_size
        micro = spec.accumulation_steps if training else 1
        return last is None or last < spec.plugin.num_replicas * micro

    def _is_cheap(self, run: Run) -> bool:
        """Whether the step is small, by the count of what it computes."""
        products = 0.0
        for call in run.calls:
            weights = getattr(call.layer, "_trainable_variables", ())
            size = sum(int(np.prod(one.shape)) for one in weights)
            for output in call.outputs[:1]:
                channels = int(output.shape[-1]) if output.shape.rank else 1
                places = int(tf.size(output)) / max(channels, 1)
                products += size * places
        return len(run.calls) <= _CALLS and products <= _PRODUCTS

    def _warn_of_gradients(self, sizes: Sequence[int]) -> None:
        """Warns of gradients that do not add up, though all else does."""
        options = {"training": True, "gradients": True}
        (whole,) = self._run(self.rows, **options)
        parts = self._run(*sizes, **options)
        if any(run.error is not None for run in (whole, *parts)):
            return
        unit = self._mixing(whole, parts)[1]
        names = _odd_gradients(self.spec, whole, parts, unit)
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            logging.warning(
                "The gradient of %r%s does not add up over parts of a batch, "
                "though outputs and losses do, %s. Look for gradients of its "
                "own, such as tf.custom_gradient, and in a train_step for a "
                "mean that Trainer.gradients does not take.",
                names[0],
                more,
                _DEPENDS,
            )

    def _judged(self, whole: Run, parts: Sequence[Run]) -> list[str]:
        """What differs between the whole and its parts, the cause first."""
        broken = _failure(parts)
        if broken is not None:
            return [broken]
        call, unit = self._mixing(whole, parts)
        kept = self._states(whole, parts, unit)
        found = [*kept.values(), *self._added(whole, parts, unit)]
        found += [
            f"The loss {name!r} gives an example another value when the other "
            f"examples of its batch change, {_DEPENDS}. A loss over pairs of "
            "examples or over the batch goes into Trainer.global_loss, which "
            "sees the outputs of all replicas. If it is meant as a loss per "
            "example: make sure that targets and outputs do not broadcast "
            "([batch] with [batch, 1]), and do not divide by the batch. "
            f"{_OPT_OUT}"
            for name, values in whole.losses.items()
            if (_apart(values, [p.losses[name] for p in parts], parts)[0] or 0)
            > unit
        ]
        if call is None:
            return found
        # Rows that only change places within the model are no reason: what
        # comes out must differ.
        differs = any(
            (_apart(one, others, parts)[0] or 0) > unit
            for made, *same in zip(
                whole.calls, *(p.calls for p in parts), strict=False
            )
            if made.parent is None
            for one, *others in zip(
                made.outputs, *(s.outputs for s in same), strict=False
            )
        )
        if not (found or differs):
            return []
        layer = call.layer
        own = {id(variable) for variable in getattr(layer, "variables", ())}
        mixing = (
            f"In the layer {_named(layer)}, the output of an example depends "
            f"on the other examples of its batch, {_DEPENDS}. Let it reduce "
            "over other axes than the first, or gather the examples of all "
            f"replicas by Trainer.all_gather. {_OPT_OUT}"
        )
        return [*(s for key, s in kept.items() if key in own), mixing]

    def _mixing(
        self, whole: Run, parts: Sequence[Run]
    ) -> tuple[Call | None, float]:
        """The first layer that mixes examples, and what is rounding."""
        dtypes = (getattr(c.layer, "compute_dtype", "") for c in whole.calls)
        unit = max([_UNITS.get(one, _UNIT) for one in dtypes], default=_UNIT)
        seen, judged = 0.0, set()
        for call, *same in zip(
            whole.calls, *(p.calls for p in parts), strict=False
        ):
            # What nearly cancels has the rounding of what it was made of.
            beside = max(map(_size, call.inputs), default=0.0) / 10
            for blamed, name in (
                (call.parent or call, "inputs"),
                (call, "outputs"),
            ):
                for tensor, *others in zip(
                    getattr(call, name),
                    *(getattr(one, name) for one in same),
                    strict=False,
                ):
                    if id(tensor) in judged:
                        continue
                    judged.add(id(tensor))
                    error, is_row = _apart(tensor, others, parts, beside)
                    if not is_row or error is None:
                        continue
                    if error > max(unit, _GROWTH * seen):
                        return blamed, unit
                    relative = beside / max(_size(tensor), 1e-30)
                    seen = max(seen, min(1.0, error * max(1.0, relative)))
        return None, max(unit, _GROWTH * seen)

    def _states(
        self, whole: Run, parts: Sequence[Run], unit: float
    ) -> dict[int, str]:
        """Sentences about variables that keep no mean or sum, by their id."""
        if self.spec.plugin.num_replicas == 1:
            return {}  # Micro-batches just assign one after the other.
        moves = (
            _size(_float(new) - _float(old))
            for _, new, old, _ in whole.assigned.values()
            if new.dtype.kind in "fV"
        )
        moved = max(moves, default=0.0)
        found = {}
        for key, (name, new, old, how) in whole.assigned.items():
            values = [
                p.assigned[key][1] if key in p.assigned else old for p in parts
            ]
            got = _agreed(how, old, values, [len(p.rows) for p in parts])
            change = _float(new) - _float(old), _float(got) - _float(old)
            scale = 1e-2 * _size(_float(old)) + moved / 10
            if _error(*change, scale) > unit:
                found[key] = (
                    f"The variable {name!r} keeps what is no "
                    f"{'sum' if how == 'sum' else 'mean'} over the batch, "
                    f"{_DEPENDS}. Say what it is where it is made, as in "
                    "add_weight(..., aggregation='sum'): 'sum' adds up what "
                    "replicas add to it, 'mean' takes the mean of their "
                    "values, by examples, 'only_first_replica' the first "
                    "one's."
                )
        return found

    def _added(
        self, whole: Run, parts: Sequence[Run], unit: float
    ) -> Iterator[str]:
        """Sentences about what layers add to the loss."""
        for number, (name, value) in enumerate(whole.added):
            some = [
                (len(p.rows), float(p.added[number][1]))
                for p in parts
                if p.rows and number < len(p.added)
            ]
            seen = {
                "sum": sum(one for _, one in some),
                "mean": sum(n * one for n, one in some) / len(whole.rows),
            }
            kind = kind_of_added(self.spec.added_losses, name) or "mean"
            if _error(seen[kind], float(value)) <= unit:
                continue
            is_sum = _error(seen["sum"], float(value)) <= unit
            yield (
                f"The layer {name!r} passes "
                f"{'a sum' if is_sum else 'what is no mean'} over the batch "
                f"to add_loss, {_DEPENDS}. Divide it by the batch, or say "
                f"what it is: Trainer.added_losses = {{{name!r}: 'sum'}} adds "
                "up what replicas add, 'mean' takes their mean, by examples. "
                f"{_OPT_OUT}"
            )


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
        return [_float(b) - _float(a) for a, b in pairs]

    first = added(start, whole)
    # Infinities and NaNs would compare as different, or hide a difference.
    if not all(np.isfinite(one).all() for one in first):
        return False
    far = 1 + max(map(_size, first), default=0.0)
    totals = [
        [
            np.sum(same, 0)
            for same in zip(*(added(start, p) for p in parts), strict=True)
        ]
    ]
    # States below and above the values, one of them uneven.
    for distance in (1, 3 * far, -300 * far):
        state = [
            (_float(s) + np.abs(a) + distance * (s.dtype.kind != "u")).astype(
                s.dtype
            )
            for s, a in zip(start, first, strict=True)
        ]
        totals.append(added(state, whole))
    return all(
        _error(one, other, 40 * far) < 1e-5
        for total in totals
        for one, other in zip(first, total, strict=True)
    )


def _odd_gradients(
    spec: StepSpec, whole: Run, parts: Sequence[Run], unit: float
) -> list[str]:
    """The variables whose gradients do not add up."""
    pairs: list[tuple[str, np.ndarray, list[np.ndarray]]] = []
    if whole.sums is not None:
        variables = spec.model.trainable_variables
        for group, found in whole.sums.gradients.items():
            same = [p.sums.gradients[group] for p in parts if p.sums]
            for i, one in found.items():
                some = [_dense(part[i]) for part in same if i in part]
                pairs.append((variables[i].path, _dense(one), some))
    # An overridden step applies what is reduced: on each replica the same.
    for number, (gradients, variables) in enumerate(whole.applied):
        for i, one in enumerate(gradients):
            if one is not None and variables is not None:
                others = [_dense(p.applied[number][0][i]) for p in parts]
                name, first = variables[i].path, _dense(one)
                pairs += [(name, first, [other]) for other in others]
    largest = max((_size(one) for _, one, _ in pairs), default=0.0)
    return [
        name
        for name, one, some in pairs
        if some
        and _error(
            one, np.sum(some, 0), max(*map(_size, some), largest / _GROWTH)
        )
        > unit
    ]


def _failure(parts: Sequence[Run]) -> str | None:
    """A sentence about a part that fails, if one does."""
    for part in parts:
        if part.error is None or isinstance(
            part.error, threading.BrokenBarrierError
        ):
            continue
        what = "another number of examples" if part.rows else "no example"
        at = ""
        if part.under_way:
            at = f" in the layer {_named(part.under_way[-1].layer)}"
        return (
            f"A part of the batch with {what} fails{at}: "
            f"{_first_line(part.error)}"
        )
    return None


def _first_line(error: BaseException) -> str:
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith("Exception encountered")
    ]
    return lines[0][:160] if lines else type(error).__name__


def _named(layer: Any) -> str:
    return f"{layer.name!r} ({type(layer).__name__})"


def _size_of(model: keras.Model, batch: Any) -> int:
    """How many numbers a model and an example hold."""
    leaves = [one for one in tf.nest.flatten(batch) if one is not None]
    return model.count_params() + sum(
        int(np.prod(one.shape[1:])) for one in leaves
    )


def _agreed(
    how: str, old: Any, values: Sequence[Any], sizes: Sequence[int]
) -> np.ndarray:
    """What the values that replicas assign become."""
    some = [(n, v) for n, v in zip(sizes, values, strict=True) if n]
    if how == "sum":
        return _float(old) + sum(_float(v) - _float(old) for _, v in some)
    if how == "mean":
        whole: np.ndarray = np.sum([n * _float(v) for n, v in some], 0)
        return whole / sum(sizes)
    return np.asarray(some[0][1])


def _dense(gradient: Any) -> np.ndarray:
    return _float(tf.convert_to_tensor(gradient))


def _float(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def _size(value: Any) -> float:
    """The largest finite number of a tensor of floats."""
    array = np.asarray(value)
    if array.dtype.kind not in "fV":
        return 0.0
    flat = np.abs(array.astype("float64").ravel())
    return float(np.max(flat[np.isfinite(flat)], initial=0.0))


def _error(left: Any, right: Any, scale: float = 0.0) -> float:
    """The largest difference, relative to the largest number.

    It is infinite where what must be equal is not.
    """
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape or left.dtype.kind in "SUOb":
        same = left.shape == right.shape and bool((left == right).all())
        return 0.0 if same else np.inf
    left, right = _float(left), _float(right)
    with np.errstate(all="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        off = np.where(same, 0.0, np.abs(left - right))
    largest = max(_size(left), scale, 1e-30)
    return float(np.max(np.nan_to_num(off, nan=np.inf), initial=0.0)) / largest


def _apart(
    whole: Any, others: Sequence[Any], parts: Sequence[Run], scale: float = 0.0
) -> tuple[float | None, bool]:
    """How far parts are from the whole, and whether each row is an example.

    Returns:
        `None` for the first where shapes do not tell.
    """
    whole, others = np.asarray(whole), [np.asarray(one) for one in others]
    sizes = [len(part.rows) for part in parts]
    count = sum(sizes)
    if len(others) > 1 and all(one.shape == whole.shape for one in others):
        return max(_error(whole, one, scale) for one in others), False
    for axis in range(min(2, whole.ndim)):
        if all(
            one.ndim == whole.ndim
            and one.shape[axis] * count == size * whole.shape[axis]
            for one, size in zip(others, sizes, strict=True)
        ):
            shapes = {np.delete(one.shape, axis).tobytes() for one in others}
            if shapes != {np.delete(whole.shape, axis).tobytes()}:
                # Such as one value for each pair of examples.
                return np.inf, False
            is_row = axis == 0 and len(whole) == count
            if is_row:
                whole, *others = (_sampled(one) for one in (whole, *others))
            joined = np.concatenate(others, axis)
            return _error(whole, joined, scale), is_row
    return None, False


def _sampled(rows: np.ndarray) -> np.ndarray:
    """Rows with at most some thousands of their numbers."""
    flat = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
    return flat[:, :: max(1, flat.shape[1] // _MOST)]
