"""Measures under several strategies on three virtual CPUs.

    python -m tests.trainer.step.metrics.metric_worker DIR [STRATEGY ...]

writes DIR/results.json: strategy, case and name to numbers.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from tests.exactness import metric_models as m
from trainer import ArrayExamples, Trainer
from trainer_plugins import CentralStorage, Default, Mirrored

STRATEGIES = {
    "default": Default,
    "mirrored:2": lambda: Mirrored(devices="cpu:0,cpu:1"),
    "mirrored:3": Mirrored,
    "central_storage:2": lambda: CentralStorage(devices="cpu:0,cpu:1"),
}


def make(strategy, model, arrays, metrics, **options):
    return Trainer(
        model=model,
        loss=dict.fromkeys(m.FAMILIES, m.nothing)
        if model is m.every_family
        else m.nothing,
        optimizer=lambda: keras.optimizers.SGD(0.0),
        metrics=metrics,
        data=lambda split: ArrayExamples(arrays, shuffle=False),
        batch_size=m.BATCH,
        strategy=strategy,
        **options,
    )


def numbers(logs):
    return {name: float(value) for name, value in logs.items()}


def run(name):
    strategy = STRATEGIES[name]()
    arrays = m.data("regression")
    yield "custom", evaluated(strategy, arrays, m.CUSTOM)
    if name in ("default", "mirrored:3"):
        yield "unweighted", evaluated(strategy, arrays[:2], m.UNWEIGHTED)
        layers = make(strategy, m.measuring_model, arrays[:2], [])
        yield "layers", numbers(layers.evaluate())
        yield "keras", numbers(of_keras(strategy).evaluate())


def of_keras(strategy):
    data = {name: m.data(name) for name in m.FAMILIES}
    arrays = (
        {name: data[name][0] for name in data},
        {name: data[name][1] for name in data},
        data["binary"][2],
    )
    metrics = {name: m.metrics_of(name) for name in data}
    return make(strategy, m.every_family, arrays, metrics)


def evaluated(strategy, arrays, factories):
    metrics = [lambda n=n, f=f: f(name=n) for n, f in factories.items()]
    model = m.identity(arrays[0].shape[1])
    return numbers(make(strategy, model, arrays, metrics).evaluate())


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    results = {name: dict(run(name)) for name in sys.argv[2:]}
    with open(os.path.join(sys.argv[1], "results.json"), "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
