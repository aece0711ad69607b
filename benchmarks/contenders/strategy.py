"""The `tf.distribute` strategy that a peer trains under."""

import tensorflow as tf

from benchmarks.orders import Task


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
