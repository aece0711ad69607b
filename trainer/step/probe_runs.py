"""Runs a step over a few examples, whole or cut as replicas would have them.

The parts of a batch are threads that run in turns. What one reduces is added
up over all of them, so to the step they are replicas: nothing of it has to be
left out. It runs eagerly, assigns nothing and calls no optimizer; a `Run`
takes what it would have done. Random numbers are fixed ones, and an example
has the same wherever it is.
"""

import contextlib
import functools
import itertools
import random
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer.data.batches import count_rows, take_rows
from trainer.data.feeding import Padded
from trainer.data.sources import seeded
from trainer.runtime import tensorflow_private as private
from trainer.step.context import step_context
from trainer.step.keras.private import added_losses, native
from trainer.step.losses.loss_terms import kind_of_added
from trainer.step.measuring import in_step
from trainer.step.methods import measure
from trainer.step.replica_batch import ReplicaBatch, weighted
from trainer.step.spec import StepSpec

_STREAM = 2  # Random numbers of no step.
_SECONDS = 120  # After which a part that waits for another one is given up.
# By axis, for random numbers that are fixed.
_IRRATIONAL = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19])
_MOST = 4096  # Of the numbers of an example, which are compared.
_NOTHING = object()

# How the values of replicas become one: rows one after the other, their sum or
# mean by examples, or the first one's.
How: TypeAlias = Literal["rows", "sum", "mean", "first"]
_HOW: dict[Any, How] = {
    tf.VariableAggregation.MEAN: "mean",
    tf.VariableAggregation.SUM: "sum",
}


class LayerTensor(NamedTuple):
    """A tensor that a layer was given, or returned.

    Attributes:
        layer: which one made it.
        value: its numbers, of large examples some thousands each.
        beside: a tenth of the largest number that the layer was given: what
            nearly cancels has the rounding of what it was made of.
        is_final: whether no other layer surrounds the layer.
    """

    layer: Any
    value: np.ndarray
    beside: float = 0.0
    is_final: bool = False


class Result(NamedTuple):
    """A value that a step returns, keeps or applies.

    Attributes:
        kind: `"loss"`, `"added"` to it, `"variable"` or `"gradient"`.
        name: of the loss, the layer or the variable.
        value: what a replica has of it.
        how: see `How`.
        old: what was there before.
        variable: that of Keras or of TensorFlow, if it is one whose layer
            leaves open how replicas agree.
    """

    kind: str
    name: str
    value: np.ndarray
    how: How
    old: np.ndarray
    variable: Any = None


class Run:
    """The results of a step on some of the examples.

    Attributes:
        rows: the numbers of the examples.
        tensors: of layers, in the order in which they were made.
        results: what else it does; variables by their id.
        measured: the updates of metrics, by name.
        under_way: the layers whose calls have not ended, the innermost last.
        error: why it failed.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows
        self.tensors: list[LayerTensor] = []
        self.results: dict[Hashable, Result] = {}
        self.measured: dict[str, list[Any]] = {}
        self.under_way: list[Any] = []
        self.error: BaseException | None = None
        # The same tensor is looked at once. It stays, and so does its id.
        self._tensors: dict[int, tf.Tensor] = {}

    def take_tensors(
        self, layer: Any, structure: Any, **options: Any
    ) -> list[np.ndarray]:
        """Takes the tensors that a layer has made."""
        found = []
        for leaf in tf.nest.flatten(structure):
            is_eager = isinstance(leaf, tf.Tensor) and hasattr(leaf, "numpy")
            if not is_eager or leaf.dtype == tf.string:
                continue
            value = as_floats(leaf)
            if value.ndim > 1 and len(value) == len(self.rows):
                value = value.reshape(len(value), int(np.prod(value.shape[1:])))
                value = value[:, :: max(1, value.shape[1] // _MOST)]
            found.append(value)
            if id(leaf) not in self._tensors:
                self._tensors[id(leaf)] = leaf
                self.tensors.append(LayerTensor(layer, value, **options))
        return found

    def take(self, kind: str, name: str, value: Any, how: How) -> None:
        """Takes a result; runs that are compared have theirs in one order."""
        made = Result(kind, name, as_floats(value), how, np.zeros(()))
        self.results[kind, len(self.results)] = made

    def take_losses(self, values: Any) -> None:
        """Takes what `per_example_loss` returned."""
        if isinstance(values, list | tuple):
            values = {str(i): value for i, value in enumerate(values)}
        elif not isinstance(values, dict):
            values = {"loss": values}
        for name, value in values.items():
            self.take("loss", name, value, "rows")

    def value_of(self, variable: tf.Variable) -> Any:
        """Returns the value that a variable would have by now."""
        found = self.results.get(id(variable))
        if found is None:
            return variable.read_value()
        return tf.cast(found.value, variable.dtype)

    def take_assignment(
        self, variable: Any, value: Any, *, decided: bool
    ) -> None:
        """Takes what a layer assigns to a variable.

        Args:
            variable: of Keras or of TensorFlow.
            value: its new value.
            decided: whether the layer says how replicas agree on one.
        """
        how = _HOW.get(native(variable).aggregation, "first")
        # To keep the first one's needs no reason.
        if not (decided and how == "first"):
            name = getattr(variable, "path", variable.name)
            new, old = as_floats(value), as_floats(native(variable))
            is_open = how == "sum" or (how == "mean" and not decided)
            self.results[id(variable)] = Result(
                *("variable", name, new, how, old),
                variable=variable if is_open else None,
            )


class _Replicas:
    """Lets the threads of the parts meet; one of them runs at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.turn = threading.Lock()
        self.barrier = threading.Barrier(count, timeout=_SECONDS)
        self._values: list[Any] = [None] * count

    def as_context(self, number: int) -> SimpleNamespace:
        """One part's stand-in for a replica context."""

        def add(*given: Any) -> list[Any]:
            self._values[number] = [tf.convert_to_tensor(one) for one in given]
            self._meet()
            found = [tf.add_n(s) for s in zip(*self._values, strict=True)]
            self._meet()  # All have read them.
            return found

        @tf.custom_gradient
        def total(*given: Any) -> Any:
            return add(*given), lambda *upstream: add(*upstream)

        def all_reduce(op: Any, structure: Any) -> Any:
            flat = tf.nest.flatten(total(*tf.nest.flatten(structure)))
            if op == tf.distribute.ReduceOp.MEAN:
                flat = [one / self.count for one in flat]
            return tf.nest.pack_sequence_as(structure, flat)

        return SimpleNamespace(
            num_replicas_in_sync=self.count,
            replica_id_in_sync_group=number,
            all_reduce=all_reduce,
        )

    def _meet(self) -> None:
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()


class _Assignments(keras.StatelessScope):
    """Keeps layers from assigning to Keras variables."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Takes an assignment; the variable keeps its value."""
        variable, value = update
        decided = variable.aggregation != "none"
        step_context.probe.take_assignment(variable, value, decided=decided)


def run(
    spec: StepSpec,
    batch: Any,
    sizes: Sequence[int],
    *,
    training: bool,
) -> list[Run]:
    """Runs the step over examples that are cut into parts.

    Args:
        spec: what the step is made of.
        batch: the examples.
        sizes: how many each part has.
        training: whether to train or to evaluate.
    """
    replicas = _Replicas(len(sizes))
    ends = [*itertools.accumulate(sizes, initial=0)]

    def fill(number: int) -> Run:
        begin, end = ends[number], ends[number + 1]
        made, part = Run(range(begin, end)), take_rows(batch, begin, end)
        here = ReplicaBatch(part, shares=len(sizes))
        with (
            replicas.turn,
            _Assignments(collect_losses=True),
            step_context.within(
                probe=made,
                replica=replicas.as_context(number),
                batch=here,
            ),
        ):
            random.seed(0)
            np.random.seed(0)
            try:
                _step(spec, here.batch, training=training)
            except BaseException as error:  # noqa: BLE001 - said, or raised
                made.error = error
                replicas.barrier.abort()
        return made

    with ThreadPoolExecutor(len(sizes)) as threads:
        return list(threads.map(fill, range(len(sizes))))


def _step(spec: StepSpec, part: Any, *, training: bool) -> None:
    """Lets the present run take what the step does with a part."""
    made = step_context.probe
    with in_step(spec, part, stream=_STREAM, training=training):
        if training and spec.has_own("train_step"):
            spec.methods.train_step(part)
        elif not training and spec.has_own("eval_step"):
            if spec.options.static_shapes:
                part = weighted(Padded(part, tf.ones([count_rows(part)])))
            spec.methods.eval_step(part)
        else:
            measure(spec, part, training=training)
        for layer, value in added_losses(spec.model):
            kind = kind_of_added(spec.added_losses, layer) or "mean"
            made.take("added", layer, value, kind)
        calls = step_context.metric_calls or {}
        made.measured |= spec.parts.metrics.layer_calls(calls)


@contextlib.contextmanager
def probing(spec: StepSpec) -> Iterator[None]:
    """Lets `run` act on a step, and undoes it."""
    own_context = tf.distribute.get_replica_context
    optimizer, operation = keras.optimizers.Optimizer, keras.Operation
    replaced: list[tuple[Any, str, Any]] = [
        (operation, "__call__", _noting(operation.__call__)),
        (optimizer, "apply", _taking(optimizer.apply)),
        (
            tf.distribute,
            "get_replica_context",
            lambda: step_context.replica or own_context(),
        ),
        *(
            (module, name, _keyed(name, getattr(module, name)))
            for module, names in private.DRAWS.items()
            for name in names
        ),
    ]
    spec.bind()
    with seeded(0), contextlib.ExitStack() as undo:
        for owner, name, value in replaced:
            undo.callback(_put, owner, name, vars(owner).get(name, _NOTHING))
            setattr(owner, name, value)
        yield


def _put(owner: Any, name: str, value: Any) -> None:
    """Gives back what an attribute was, or that there was none."""
    if value is _NOTHING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _taking(own: Callable[..., Any]) -> Callable[..., Any]:
    """The `apply` of optimizers, whose gradients a run takes."""

    @functools.wraps(own)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        run = step_context.probe
        if run is None:
            return own(self, grads, trainable_variables)
        for one, variable in zip(
            grads, trainable_variables or (), strict=False
        ):
            if one is not None:
                # They are reduced: on each replica what they are of the whole.
                dense = tf.convert_to_tensor(one)
                run.take("gradient", variable.path, dense, "first")
        return None

    return apply


def _noting(own: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a layer, of which a run takes inputs and outputs."""

    @functools.wraps(own)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        run = step_context.probe
        if run is None:
            return own(layer, *args, **kwargs)
        # What comes between layers was made by the one that surrounds them.
        maker = run.under_way[-1] if run.under_way else layer
        inputs = run.take_tensors(maker, (args, kwargs))
        run.under_way.append(layer)  # Where it fails, they say in which layer.
        outputs = own(layer, *args, **kwargs)
        run.under_way.pop()
        beside = max(map(largest, inputs), default=0.0) / 10
        is_final = not run.under_way
        run.take_tensors(layer, outputs, beside=beside, is_final=is_final)
        return outputs

    return call


def _keyed(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that draws, with the numbers of each example for itself."""

    @functools.wraps(own)
    def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
        like, run = own(shape, *args, **kwargs), step_context.probe
        if run is None or not hasattr(like, "numpy"):
            return like
        unit = _unit(tuple(like.shape), run.rows)
        if "normal" in name:
            unit = 2 * unit - 1
        elif "_int" in name:
            low, high = args[:2] if args else (0, 2**20)
            low, high = kwargs.get("minval", low), kwargs.get("maxval", high)
            unit = np.floor(unit * (int(high) - int(low))) + int(low)
        return tf.cast(tf.constant(unit), like.dtype)

    return draw


def _unit(shape: tuple[int, ...], rows: Sequence[int]) -> np.ndarray:
    """Numbers from 0 to 1; along the axis of examples, those of the rows."""
    numbers = [np.arange(size) for size in shape]
    for axis, size in enumerate(shape[:2]):
        # An axis may hold several numbers for each example, as windows do.
        each, rest = divmod(size, len(rows) or size + 1)
        if each and not rest:
            first = each * np.asarray(rows)[:, np.newaxis]
            numbers[axis] = (first + np.arange(each)).ravel()
            break
    unit = np.asarray(0.618)
    for factor, number in zip(_IRRATIONAL, numbers, strict=False):
        unit = np.add.outer(unit, factor * number)
    return unit % 1


def as_floats(value: Any) -> np.ndarray:
    """Numbers in the widest type."""
    array = np.asarray(value)
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def largest(values: np.ndarray) -> float:
    """The largest finite number."""
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))
