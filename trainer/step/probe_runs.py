"""Runs a step over a few examples, whole or cut as replicas would have them.

The parts of a batch are threads that run in turns. What one reduces is added
up over all of them, so to the step they are replicas: nothing of it has to be
left out. It runs eagerly, assigns nothing and calls no optimizer; a `Run`
takes what it would have done. Random numbers are fixed ones, and an example
has the same wherever it is.
"""

import contextlib
import dataclasses
import functools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.data.batches import take_rows
from trainer.runtime.private_names import require
from trainer.step.context import step_context
from trainer.step.keras import batch_norm
from trainer.step.keras.private import added_losses, native
from trainer.step.measuring import in_step
from trainer.step.methods import GradientSums, measure
from trainer.step.replica_batch import ReplicaBatch
from trainer.step.spec import StepSpec

_STREAM = 2  # Random numbers of no step.
_SECONDS = 120  # After which a part that waits for another one is given up.
# The operations that draw, by their module.
_DRAWING = (
    (
        require("tensorflow.python.ops", "gen_random_ops"),
        (
            "random_uniform",
            "random_uniform_int",
            "random_standard_normal",
            "truncated_normal",
        ),
    ),
    (
        require("tensorflow.python.ops", "gen_stateless_random_ops_v2"),
        (
            "stateless_random_uniform_v2",
            "stateless_random_uniform_int_v2",
            "stateless_random_uniform_full_int_v2",
            "stateless_random_normal_v2",
            "stateless_truncated_normal_v2",
        ),
    ),
)
_NOTHING = object()


@dataclasses.dataclass
class Call:
    """A call of a layer.

    Attributes:
        layer: which one.
        parent: the call within which it was made; `None` for the outermost.
        inputs: tensors.
        outputs: tensors; none while it is under way.
    """

    layer: keras.Operation
    parent: "Call | None"
    inputs: list[Any]
    outputs: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Run:
    """What a step does with some of the examples.

    Attributes:
        rows: the numbers of the examples.
        calls: of layers, in the order in which they ended.
        under_way: calls that have not ended, the innermost one last.
        added: what layers passed to `add_loss`, with their names.
        losses: the values of `per_example_loss`, by output.
        assigned: by variable, its name, its new value, its old one, and how
            the values of replicas become one.
        measured: the updates of metrics, by name.
        applied: gradients and variables that an overridden step applied.
        sums: of the gradients, where the run was to take them.
        error: why it failed.
    """

    rows: list[int]
    calls: list[Call] = dataclasses.field(default_factory=list)
    under_way: list[Call] = dataclasses.field(default_factory=list)
    added: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    losses: dict[str, Any] = dataclasses.field(default_factory=dict)
    assigned: dict[int, tuple[str, Any, Any, str]] = dataclasses.field(
        default_factory=dict
    )
    measured: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    applied: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    sums: GradientSums | None = None
    error: BaseException | None = None

    def take_losses(self, values: Any) -> None:
        """Takes what `per_example_loss` returned."""
        if isinstance(values, list | tuple):
            values = {str(i): value for i, value in enumerate(values)}
        self.losses = values if isinstance(values, dict) else {"loss": values}

    def value_of(self, variable: tf.Variable) -> Any:
        """What a variable would hold by now."""
        found = self.assigned.get(id(variable))
        return variable.read_value() if found is None else found[1]

    def take_assignment(
        self, variable: Any, value: Any, how: str, *, decided: bool
    ) -> None:
        """Takes what a layer assigns to a variable.

        Args:
            variable: of Keras or of TensorFlow.
            value: its new value.
            how: the values of replicas become one: by their `"mean"` or
                `"sum"`, or as the `"first"` one's.
            decided: whether the layer says so.
        """
        # To keep the first one's needs no reason.
        if not (decided and how == "first"):
            name = getattr(variable, "path", variable.name)
            old = native(variable).numpy()
            self.assigned[id(variable)] = name, np.asarray(value), old, how


class _Replicas:
    """Lets the threads of the parts meet; one of them runs at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.turn = threading.Lock()
        self._values: list[Any] = [None] * count
        self._barrier = threading.Barrier(count, timeout=_SECONDS)

    def abort(self) -> None:
        """Ends the wait of the others, as this part has failed."""
        self._barrier.abort()

    def as_context(self, number: int) -> SimpleNamespace:
        """One part's stand-in for a replica context."""

        def add(*given: Any) -> list[Any]:
            dense = [tf.convert_to_tensor(one) for one in given]
            values = self._exchange(number, dense)
            return [tf.add_n(same) for same in zip(*values, strict=True)]

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

    def _exchange(self, number: int, value: Any) -> list[Any]:
        self._values[number] = value
        self._meet()
        found = list(self._values)
        self._meet()
        return found

    def _meet(self) -> None:
        self.turn.release()
        try:
            self._barrier.wait()
        finally:
            self.turn.acquire()


class _Assignments(keras.StatelessScope):
    """Keeps layers from assigning to Keras variables."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Takes an assignment; the variable keeps its value."""
        variable, value = update
        decided = variable.aggregation != "none"
        how = "mean" if native(variable).dtype.is_floating else "first"
        if decided:
            how = variable.aggregation.removeprefix("only_").partition("_")[0]
        assert step_context.probe is not None
        step_context.probe.take_assignment(
            variable, value, how, decided=decided
        )


def run(
    spec: StepSpec,
    batch: Any,
    sizes: Sequence[int],
    *,
    training: bool,
    gradients: bool = False,
) -> list[Run]:
    """Runs the step over examples that are cut into parts.

    Args:
        spec: what the step is made of.
        batch: the examples.
        sizes: how many each part has.
        training: whether to train or to evaluate.
        gradients: whether to take them.
    """
    replicas, begin, runs, threads = _Replicas(len(sizes)), 0, [], []
    for number, size in enumerate(sizes):
        made = Run([*range(begin, begin + size)])
        part = take_rows(batch, begin, begin + size)
        threads.append(
            threading.Thread(
                target=_fill,
                args=(made, spec, part, replicas, number),
                kwargs={"training": training, "gradients": gradients},
            )
        )
        runs.append(made)
        begin += size
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def _fill(
    made: Run,
    spec: StepSpec,
    part: Any,
    replicas: _Replicas,
    number: int,
    *,
    training: bool,
    gradients: bool,
) -> None:
    """Lets a run take what the step does with its part of the batch."""
    here = ReplicaBatch(part, shares=replicas.count)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(part)
    context = replicas.as_context(number)
    with replicas.turn, _Assignments(collect_losses=True):
        random.seed(0)
        np.random.seed(0)
        try:
            with (
                step_context.within(probe=made, replica=context),
                in_step(spec, part, stream=_STREAM, training=training),
                step_context.within(batch=here),
            ):
                if training and spec.has_own("train_step"):
                    spec.methods.train_step(part)
                elif spec.has_own("train_step") or spec.has_own("eval_step"):
                    spec.methods.forward(x, training=training)
                elif gradients:
                    made.sums, _ = spec.methods.gradient_sums(part)
                else:
                    measure(spec, part, training=training)
                made.added = added_losses(spec.model)
                calls = step_context.metric_calls or {}
                made.measured |= spec.parts.metrics.layer_calls(calls)
        except BaseException as error:  # noqa: BLE001 - it is said, or raised
            made.error = error
            replicas.abort()


@contextlib.contextmanager
def probing(spec: StepSpec) -> Iterator[None]:
    """Lets `run` act on a step, and undoes it."""
    own_context = tf.distribute.get_replica_context
    replaced: list[tuple[Any, str, Any]] = [
        (module, name, _keyed(name, require(module, name)))
        for module, names in _DRAWING
        for name in names
    ]
    replaced += [
        (keras.Operation, "__call__", _noting(keras.Operation.__call__)),
        (
            tf.distribute,
            "get_replica_context",
            lambda: step_context.replica or own_context(),
        ),
    ]
    replaced += [
        (optimizer, "apply", _taking(optimizer.apply))
        for optimizer in spec.parts.optimizers.values()
    ]
    states = random.getstate(), np.random.get_state()
    before = [vars(owner).get(name, _NOTHING) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            _set(owner, name, value)
        with batch_norm.synchronized(spec.model):
            yield
    finally:
        for (owner, name, _), value in zip(replaced, before, strict=True):
            _set(owner, name, value)
        random.setstate(states[0])
        np.random.set_state(states[1])


def _set(owner: Any, name: str, value: Any) -> None:
    # Not through Keras' own __setattr__, which would track the function.
    setter = type if isinstance(owner, type) else object
    if value is _NOTHING:
        setter.__delattr__(owner, name)
    else:
        setter.__setattr__(owner, name, value)


def _taking(own: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's `apply`, whose gradients a run takes."""

    def apply(gradients: Any, variables: Any = None) -> Any:
        if step_context.probe is None:
            return own(gradients, variables)
        step_context.probe.applied.append((gradients, variables))
        return None

    return apply


def _noting(own: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a layer, of which a run takes inputs and outputs."""

    @functools.wraps(own)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        run = step_context.probe
        if run is None:
            return own(layer, *args, **kwargs)
        parent = run.under_way[-1] if run.under_way else None
        made = Call(layer, parent, _tensors((args, kwargs)))
        run.under_way.append(made)  # Where it fails, they say in which layer.
        outputs = own(layer, *args, **kwargs)
        made.outputs = _tensors(outputs)
        run.calls.append(run.under_way.pop())
        return outputs

    return call


def _tensors(structure: Any) -> list[Any]:
    leaves = tf.nest.flatten(structure)
    return [
        leaf
        for leaf in leaves
        if isinstance(leaf, tf.Tensor) and hasattr(leaf, "numpy")
    ]


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
    count = len(rows)
    axes = [
        axis
        for axis, size in enumerate(shape[:2])
        if count and size and size % count == 0
    ]
    axis = axes[0] if axes else 0
    moved = np.zeros(shape)
    if not moved.size or not shape:
        return moved + 0.618
    moved = np.moveaxis(moved, axis, 0)
    number = np.arange(len(moved))
    if axes:
        # An axis may hold several numbers for each example, as windows do.
        each = len(moved) // count
        number = number % each + each * np.asarray(rows)[number // each]
    inner = np.arange(1, moved[0].size + 1).reshape(moved[0].shape)
    number = number.reshape([-1] + [1] * inner.ndim)
    unit = (0.618 * inner + 0.414 * number) % 1
    found: np.ndarray = np.moveaxis(unit, 0, axis)
    return found
