"""The surroundings of a replica's step, and the sums that it logs."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.step.context import current_graph, step_context
from trainer.step.gradients import reduce_sum
from trainer.step.keras.private import all_layers
from trainer.step.logs import DATA_WAIT, EXAMPLES, MISSES, StepLogs
from trainer.step.lookups import position
from trainer.step.metrics.states import VALUES
from trainer.step.reductions.sums import Average, average
from trainer.step.replica_batch import ReplicaBatch
from trainer.step.spec import StepSpec
from trainer.values.words import shown


def replica_batch(
    spec: StepSpec, batch: Any, *, training: bool
) -> ReplicaBatch:
    """A batch as a replica's part of a global one.

    It is the one that the step is in, unless research code passes another.
    """
    around = step_context.batch
    if around is not None and around.batch is batch:
        return around
    micro = spec.accumulation_steps if training else 1
    # Collectives between processes need one shape for all steps: there, each
    # part is padded to the most examples that a replica can get.
    most = None
    if not spec.plugin.is_alone:
        most = functools.partial(most_rows, spec, training=training)
    shares = spec.plugin.num_replicas * micro
    here = ReplicaBatch(batch, shares=shares, most_rows=most)
    if around is not None:
        # What was made of a stand-in is one.
        here.examples = around.or_zeros(here.examples)
    return here


@contextlib.contextmanager
def in_step(
    spec: StepSpec,
    batch: Any,
    *,
    micro: tf.Tensor | int = 0,
    stream: int = 0,
    training: bool = True,
) -> Iterator[tuple[Any, Callable[..., StepLogs]]]:
    """Surrounds the step on a replica's batch: sets the `StepContext`.

    Args:
        spec: what the step is made of.
        batch: the replica's.
        micro: the micro-batch's index within the step.
        stream: see `StepRandomness.at`.
        training: whether to train or to evaluate.

    Yields:
        The batch for the step, see `ReplicaBatch.batch`; and a function that
        completes the step's results, so that they add up over replicas and
        steps: by what layers have measured, what `trainer.log` was given, and
        the seconds that the step waited for data. Call it within this context,
        after the step.
    """
    parts, before = spec.parts, position()
    logged: dict[str, Average] = {}
    here = replica_batch(spec, batch, training=training)
    for_xla = spec.is_for_xla(training=training)
    with (
        step_context.within(draws_as_graph=for_xla),
        parts.randomness.at(parts.step.read_value(), micro, stream),
        parts.metrics.in_layers.listening() as calls,
        step_context.within(batch=here, logged=logged),
    ):

        def complete(
            logs: StepLogs, waited: tf.Tensor | None = None
        ) -> StepLogs:
            _check_names(logged, logs)
            metrics = parts.metrics
            found = logs | logged | metrics.logs(metrics.layer_calls(calls))
            found = metrics.gathered(found, here, training=training)
            if training:
                layers = {layer.name for layer in all_layers(spec.model)}
                misses = spec.lookups.misses(since=before, layers=layers)
                if misses is not None and spec.form.uses_xla:
                    found[MISSES] = average(misses, 0.0)
            return _adding_up(spec, found, here, waited)

        yield here.batch, complete


def _adding_up(
    spec: StepSpec, logs: StepLogs, here: ReplicaBatch, waited: Any
) -> StepLogs:
    """Results that add up; a plain scalar is averaged over replicas."""
    complete: StepLogs = {}
    for name, value in logs.items():
        value = average(value) if isinstance(value, tf.Tensor) else value
        if name.startswith(VALUES):
            continue
        is_settled = name in here.settled
        complete[name] = value if is_settled else here.or_zeros(value)
    complete[EXAMPLES] = average(here.examples, 0.0)
    if waited is not None:
        # Replicas wait together, and what they log is summed.
        part = waited / spec.plugin.num_replicas
        complete[DATA_WAIT] = average(part, 0.0)
    if spec.options.reduces_logs:
        complete = reduce_sum(complete)
    return complete | {n: v for n, v in logs.items() if n.startswith(VALUES)}


def log_in_step(name: str, value: Any, **given: Any) -> bool:
    """Takes what `trainer.log` is given in a step.

    Args:
        name: of the value.
        value: an `Average`, or one number for each example.
        **given: what says more of a value, which a step's cannot have.

    Returns:
        Whether it was one of a step.

    Raises:
        UserError: it cannot be one of a step.
    """
    logged, here = step_context.logged, step_context.batch
    if logged is None or here is None:
        # A graph that is not a step's, such as that of `predict`.
        return not tf.executing_eagerly()
    what = f"trainer.log({name!r}, ...) in a step"
    for option, said in given.items():
        if said not in (None, "scalar"):
            raise UserError(
                f"{what} has {option} = {said!r}. Leave it out: a step logs "
                "numbers of the split it is a step of. Images, histograms, "
                "text and audio are logged in a callback."
            )
    if current_graph() is not step_context.graph:
        raise UserError(
            f"{what} is inside a loop, a condition or a tf.function. Log "
            "once in a step, outside of these."
        )
    if name in logged:
        raise UserError(f"{what} is called twice. Log a name once.")
    if not isinstance(value, Average):
        value = _mean_of_examples(what, tf.convert_to_tensor(value), here)
    logged[name] = value
    return True


def _mean_of_examples(
    what: str, value: tf.Tensor, here: ReplicaBatch
) -> Average:
    dtype, rows = value.dtype, here.rows
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    known = value.shape[0] if value.shape.rank else None
    is_short = isinstance(rows, int) and known is not None and known != rows
    if not is_number or value.shape.rank != 1 or is_short:
        raise UserError(
            f"{what} got a {dtype.name} of shape {value.shape}, and each "
            "replica has its own. Pass one value for each example (of shape "
            "[batch]), or trainer.average(total, count)."
        )
    value = tf.cast(value, tf.float32)
    if here.real is None:
        return average(
            tf.reduce_sum(value), tf.cast(tf.shape(value)[0], tf.float32)
        )
    # tf.where, not a product: padding may be anything, and NaN times 0 is NaN.
    kept = tf.where(here.real > 0, value, tf.zeros_like(value))
    return average(tf.reduce_sum(kept), here.examples)


def _check_names(logged: StepLogs, logs: StepLogs) -> None:
    for odd in (one for one in logs if not isinstance(one, str)):
        raise UserError(f"A step returned {shown(odd)} for a value's name.")
    # Some have a prefix, such as "metric:"; "loss" may come in parts.
    taken = {"loss", *logs, *(one.partition(":")[2] for one in logs)}
    for name in logged.keys() & taken:
        raise UserError(
            f"trainer.log({name!r}, ...) in a step has the name of a value "
            "that the step returns. Choose another one."
        )


def most_rows(spec: StepSpec, *, training: bool) -> int:
    """The most examples that a replica gets of a (micro-)batch.

    Raises:
        UserError: the data does not say.
    """
    batch_size = spec.batches("train" if training else "eval").batch_size
    if batch_size is None:
        raise UserError(
            "all_gather exchanges examples between processes, and the data "
            "does not say how many a batch holds: set its batch_size."
        )
    micro = spec.accumulation_steps if training else 1
    # As `trainer.data.Cut` does.
    of_micro_batch = math.ceil(batch_size / micro)
    return math.ceil(of_micro_batch / spec.plugin.num_replicas)
