"""A task on a host whose GPUs exist only for TensorFlow's Python.

TensorFlow counts GPUs where it lists physical and logical devices. Here both
lists have more of them than there are, and what is placed on one is computed
on the CPU, by TensorFlow's soft placement.

    gpu_script.py CASE GPUS [ARGUMENT]

prints what TensorFlow derives, as JSON, or the sentence of a refusal. GPUS is
a number, or `named`: those of `CUDA_VISIBLE_DEVICES`.
"""

import json
import os
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.device_spec import DeviceSpecV2

from trainer import Trainer, UserError, experiment
from trainer_plugins import (
    CentralStorage,
    Default,
    Mirrored,
    MultiWorkerMirrored,
    OneDevice,
    ParameterServer,
)


def pretend(count, of_workers=()):
    """Lets TensorFlow list GPUs, here and on remote workers."""
    binding = context.pywrap_tfe
    there = binding.TF_ListPhysicalDevices()
    names = [b"/physical_device:GPU:%d" % i for i in range(count)]
    binding.TF_ListPhysicalDevices = lambda: [*there, *names]
    initialize = context.Context._initialize_logical_devices

    def listing(self):
        initialize(self)
        self._num_gpus = len(self.get_visible_devices("GPU"))
        found = [
            DeviceSpecV2.from_string(device.name)
            for device in self._logical_devices
        ]
        own, *others = [one for one in found if one.device_index == 0]
        workers = [one for one in (own, *others) if one.job == "worker"]
        counts = [(own, self._num_gpus)]
        if of_workers:
            counts = list(zip(workers, of_workers, strict=True))
        for where, number in counts:
            for i in range(number):
                gpu = where.replace(device_type="GPU", device_index=i)
                name = gpu.to_string()
                self._logical_devices.append(context.LogicalDevice(name, "GPU"))
                self._context_devices.append(name)

    context.Context._initialize_logical_devices = listing


def derived(plugin):
    """What TensorFlow makes of a plugin's strategy."""
    strategy = plugin.strategy
    return {
        "replicas": strategy.num_replicas_in_sync,
        "devices": [
            name.replace("/job:localhost/replica:0/task:0", "")
            for name in plugin.devices()
        ],
        "gpus": [
            int(one.name[-1]) for one in tf.config.get_visible_devices("GPU")
        ],
    }


def trained(plugin):
    """The weights after a fit of two epochs with a short last batch."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    x = np.linspace(-1, 1, 88, dtype="float32").reshape(22, 4)
    Trainer(model, strategy=plugin).fit(
        x, x.sum(axis=1, keepdims=True), batch_size=8, epochs=2, verbose=0
    )
    return [weight.tolist() for weight in model.get_weights()]


def of_an_evaluator():
    """The GPUs that a process beside training sees."""
    with (
        tempfile.TemporaryDirectory() as folder,
        experiment.build(
            mode="continuous_eval",
            model_dir=folder,
            strategy="default",
            trainer=lambda **given: Trainer(
                lambda: keras.Sequential([keras.layers.Dense(4)]),
                loss="mse",
                data=lambda split: (np.zeros((8, 4)), np.zeros((8, 4))),
                **given,
            ),
        ),
    ):
        return [one.name for one in tf.config.get_visible_devices("GPU")]


class OfTensorFlow(MultiWorkerMirrored):
    """What TensorFlow makes of TF_CONFIG by its own resolver."""

    name = "of_tensorflow"

    def create(self):
        return tf.distribute.MultiWorkerMirroredStrategy()


CASES = {
    "default": lambda _: derived(Default()),
    "one_device": lambda name: derived(OneDevice(devices=name)),
    "mirrored": lambda name: derived(Mirrored(devices=name)),
    "multi_worker_mirrored": lambda _: derived(MultiWorkerMirrored()),
    "of_tensorflow": lambda _: derived(OfTensorFlow()),
    "parameter_server": lambda _: derived(ParameterServer()),
    "serve": lambda _: ParameterServer().serve(),
    "evaluator": lambda _: of_an_evaluator(),
    "trained_default": lambda _: trained(Default()),
    "trained_mirrored": lambda _: trained(Mirrored(all_reduce="reduce_to_one")),
    "trained_central_storage": lambda _: trained(CentralStorage()),
}


def main():
    case, gpus, *argument = sys.argv[1:]
    of_workers = ()
    if case == "parameter_server":
        of_workers = [int(number) for number in argument[0].split(",")]
    if argument == ["2 CPUs"]:
        one = tf.config.LogicalDeviceConfiguration()
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [one, one])
    if gpus == "named":
        gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    pretend(int(gpus), of_workers)
    try:
        print(json.dumps(CASES[case](argument[0] if argument else None)))
    except UserError as error:
        print(json.dumps({"refused": str(error)}))
    sys.stdout.flush()
    # No goodbye to peers: what TensorFlow derives is all that counts here.
    os._exit(0)


if __name__ == "__main__":
    main()
