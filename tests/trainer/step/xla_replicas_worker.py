"""Trains in two forms on two replicas, and says what came of it.

python -m tests.trainer.step.xla_replicas_worker DIRECTORY
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

from trainer import Guard, Trainer, UserError

_RANDOM = np.random.default_rng(0)
# A last, short batch: the replicas' shares of it are 3 and 2 examples.
X = _RANDOM.normal(size=(53, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2] * 0.5
STEPS = 12


class OwnStep(Trainer):
    """Never gets as far as its step."""

    def train_step(self, batch):
        raise AssertionError


def net(*layers):
    def model():
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense
        return keras.Sequential(
            [keras.Input((4,)), dense(6, kernel_regularizer="l2")]
            + [*(make() for make in layers), dense(1)]
        )

    return model


CASES = {
    "plain": {"metrics": ["mae"]},
    "micro_batches": {"accumulation_steps": 2},
    "guarded_and_averaged": {"guard": Guard(), "ema_momentum": 0.9},
    "loss_scale": {"precision": "mixed_float16"},
}
REFUSED = {
    "norm": {"model": net(keras.layers.BatchNormalization)},
    "own_step": {"kind": OwnStep},
    "central_storage": {"strategy": "central_storage"},
}


def make(form, *, kind=Trainer, **options):
    defaults = {
        "model": net(),
        "loss": "mse",
        "optimizer": lambda: keras.optimizers.Adam(0.01),
        "data": lambda split: (X, Y),
        "batch_size": 8,
        "strategy": "mirrored",
    }
    return kind(jit_compile=form, **{**defaults, **options})


def weights_of(trainer):
    return np.concatenate([w.ravel() for w in trainer.model.get_weights()])


def main(directory):
    found = {}
    for name, options in CASES.items():
        for form in ("graph", "xla"):
            trainer = make(form, **options)
            trainer.train(STEPS, verbose=0)
            assert trainer.plugin.num_replicas == 2
            found[f"{name}/{form}"] = weights_of(trainer)
        # Each call reads its input anew, as a run that goes on does.
        cut = make("xla", **options)
        for end in (1, 7, STEPS):
            cut.train(end, steps_per_loop=3, verbose=0)
        found[f"{name}/cut"] = weights_of(cut)
    for name, options in REFUSED.items():
        try:
            make("xla", **options).train(1, verbose=0)
        except UserError as error:
            found[f"{name}/refused"] = np.array(str(error))
    np.savez(os.path.join(directory, "results.npz"), **found)


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    main(sys.argv[1])
