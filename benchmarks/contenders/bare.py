"""A loop of steps in a `tf.function`, and nothing else.

What a careful user writes for one device: Keras' layers and Adam, 100 steps in
one call, loss and accuracy added up in the graph and read after each call. No
checkpoints, no logs, no callbacks. Its forms are those in which TensorFlow can
run such a loop: the graph as it is, or XLA over a stack of batches; the input
is shuffled row by row, or gathered batch by batch. With all of them, the
fastest is what no framework on top can beat.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from benchmarks import models
from benchmarks.contenders import inputs
from benchmarks.orders import Orders, Task

# Of one batch: the sum of losses, and how many are right.
Step: TypeAlias = Callable[[Any, Any], tuple[tf.Tensor, tf.Tensor]]
_STACK = 50


def make_step(make: Callable[[], keras.Model], batch: int) -> Step:
    """One step of Adam on a model.

    Args:
        make: makes the model.
        batch: how many examples the loss is the mean of; under a strategy the
            global batch.
    """
    model = make()
    optimizer = keras.optimizers.Adam()
    variables = model.trainable_variables
    optimizer.build(variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_sum(losses) / batch
        gradients = tape.gradient(loss, [one.value for one in variables])
        optimizer.apply(gradients, variables)
        right = tf.argmax(logits, axis=1, output_type=tf.int32) == y
        return loss, tf.reduce_sum(tf.cast(right, tf.float32)) / batch

    return step


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    spec = models.find(task.model)
    call, trace_seconds = _make_call(task, spec)
    orders.wait(trace_seconds=trace_seconds)
    while True:
        for _ in range(task.steps // task.unit):
            call()
        orders.wait()


def _make_call(
    task: Task, spec: models.Spec
) -> tuple[Callable[[], list[float]], float]:
    """Makes what runs `task.unit` steps, and says how long its trace took."""
    stacked = task.form == "stacked"
    step = make_step(spec.make, models.BATCH)
    arrays = spec.arrays(task.examples)
    began = time.perf_counter()
    in_stack = min(_STACK, task.unit)
    if stacked:
        dataset = inputs.gathered(arrays, models.BATCH, stack=in_stack)
    elif "gather" in task.form:
        dataset = inputs.gathered(arrays, models.BATCH)
    else:
        dataset = inputs.rows(arrays, models.BATCH)
    del arrays  # The dataset has its own.
    iterator = iter(dataset)

    def add_up(count: Any, read: Callable[[tf.Tensor], Any]) -> tf.Tensor:
        sums = tf.zeros([2])
        for i in tf.range(count):
            sums += tf.stack(step(*read(i)))
        return sums

    if stacked:
        many = tf.function(
            lambda *parts: add_up(
                in_stack, lambda i: tuple(part[i] for part in parts)
            ),
            jit_compile=True,
        )
        many.get_concrete_function(*dataset.element_spec)

        def call() -> list[float]:
            sums = [many(*next(iterator)) for _ in range(task.unit // in_stack)]
            return [float(one) / task.unit for one in tf.add_n(sums)]

    else:
        loop = tf.function(lambda feed: add_up(task.unit, lambda _: next(feed)))
        loop.get_concrete_function(iterator)

        def call() -> list[float]:
            return [float(one) / task.unit for one in loop(iterator)]

    return call, time.perf_counter() - began
