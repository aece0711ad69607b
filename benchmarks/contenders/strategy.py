"""The `tf.distribute` strategy that a peer trains under."""

import contextlib
from typing import TYPE_CHECKING

from benchmarks.orders import Task

if TYPE_CHECKING:
    import tensorflow as tf


def scope_of(task: Task) -> contextlib.AbstractContextManager[object]:
    """The scope of a task's strategy; none without one.

    Keras on another backend has none, and must not import TensorFlow for it.
    """
    if task.strategy == "default":
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[object] = make_strategy(
        task
    ).scope()
    return scope


def make_strategy(task: Task) -> "tf.distribute.Strategy":
    """The strategy of a task; before any other use of TensorFlow."""
    import tensorflow as tf

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
    if task.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy("cpu:0")
    if task.strategy == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(
            devices, "cpu:0"
        )
    return tf.distribute.get_strategy()
