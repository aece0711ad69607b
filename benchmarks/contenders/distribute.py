"""A bare loop under a `tf.distribute` strategy.

The step of the bare loop, 100 of them in one call, on per-replica batches that
are gathered at once. What it shows of loss and accuracy is this process's
share, so that it has no reduction but that of the gradients. Under parameter
servers a worker makes 50 steps in one closure, or as many as its form says.
"""

import json
import os
import time
from typing import Any

import tensorflow as tf

from benchmarks import models
from benchmarks.contenders import inputs
from benchmarks.contenders.bare import make_step
from benchmarks.orders import Orders, Task

_CLOSURE = 50


def make_strategy(task: Task) -> tf.distribute.Strategy:
    """The strategy of a task; before any other use of TensorFlow."""
    if task.strategy == "multi_worker_mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if task.strategy == "parameter_server":
        return tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver()
        )
    if task.replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one] * task.replicas)
    devices = [f"cpu:{number}" for number in range(task.replicas)]
    if task.strategy == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    if task.strategy == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(
            devices, "cpu:0"
        )
    return tf.distribute.get_strategy()


def make_loop(task: Task, strategy: tf.distribute.Strategy, steps: int) -> Any:
    """A `tf.function` of an iterator that makes so many steps."""
    with strategy.scope():
        # The global batch: gradients are added up over replicas.
        step = make_step(models.find(task.model).make, models.BATCH)

    @tf.function
    def loop(feed: Any) -> tf.Tensor:
        sums = tf.zeros([2])
        for _ in tf.range(steps):
            found = strategy.run(step, args=next(feed))
            for value in zip(
                *map(strategy.experimental_local_results, found), strict=True
            ):
                sums += tf.stack(value)
        return sums

    return loop


def make_input(task: Task, strategy: tf.distribute.Strategy) -> Any:
    """An iterator over per-replica batches."""
    arrays = models.find(task.model).arrays(task.examples)
    batch = models.BATCH // strategy.num_replicas_in_sync
    return iter(
        strategy.distribute_datasets_from_function(
            lambda _: inputs.gathered(arrays, batch)
        )
    )


def run(task: Task, orders: Orders) -> None:
    """Trains in turns, or serves those that do."""
    if task.strategy == "parameter_server":
        _run_with_servers(task, orders)
        return
    strategy = make_strategy(task)
    loop = make_loop(task, strategy, task.unit)
    began = time.perf_counter()
    feed = make_input(task, strategy)
    loop.get_concrete_function(feed)
    orders.wait(trace_seconds=time.perf_counter() - began)
    while True:
        for _ in range(task.steps // task.unit):
            loop(feed).numpy()
        orders.wait()


def _run_with_servers(task: Task, orders: Orders) -> None:
    role = json.loads(os.environ["TF_CONFIG"])
    job, index = role["task"]["type"], role["task"]["index"]
    if job != "chief":
        server = tf.distribute.Server(
            role["cluster"], job_name=job, task_index=index, protocol="grpc"
        )
        assert server.target  # It serves for as long as it is held.
        orders.serve()
    strategy = make_strategy(task)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    closure = min(int(task.form or _CLOSURE), task.unit)
    loop = make_loop(task, strategy, closure)
    arrays = models.find(task.model).arrays(task.examples)
    feed = iter(
        coordinator.create_per_worker_dataset(
            lambda: inputs.gathered(arrays, models.BATCH)
        )
    )
    while True:
        orders.wait()
        for _ in range(task.steps // task.unit):
            values = [
                coordinator.schedule(loop, args=(feed,))
                for _ in range(task.unit // closure)
            ]
            coordinator.join()
            [value.fetch() for value in values]
