"""The program that is compiled for a TPU computes the right thing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import run_module
from trainer import Trainer
from trainer.step.trials.prepare import prepare
from trainer.tools.check.programs import RunPrograms
from trainer_experiments.models import conv_net
from trainer_plugins.strategies.tpu import TPU
from trainer_plugins.tpu_check import libtpu_process, lowering

pytestmark = pytest.mark.skipif(
    libtpu_process.why_not_here() is not None,
    reason=f"{libtpu_process.why_not_here()}",
)
REPLICAS, BATCH = 4, 32
_RANDOM = np.random.default_rng(0)
DATA = (
    _RANDOM.random((BATCH, 28, 28, 1), "float32"),
    _RANDOM.integers(10, size=BATCH),
)


def normalized():
    """With statistics that replicas share, and variables that they assign."""
    net = conv_net(filters=4, units=8)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.BatchNormalization(),
            *net.layers,
        ]
    )


def make(strategy, model):
    """tpu_mnist.gin in float32, on one batch in its order."""
    trainer = Trainer(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=lambda: keras.optimizers.Adam(0.004, global_clipnorm=1.0),
        metrics=[keras.metrics.SparseCategoricalAccuracy],
        data=lambda split: tf.data.Dataset.from_tensor_slices(DATA).batch(
            BATCH, drop_remainder=True
        ),
        batch_size=BATCH,
        strategy=strategy,
        jit_compile=False,
    )
    trainer.build()
    return trainer


@pytest.mark.parametrize(
    "model", [conv_net, pytest.param(normalized, marks=pytest.mark.long)]
)
def test_a_step_of_all_replicas_is_one_step(model, tmp_path, root):
    trainer = make(TPU(tpu_topology="v5e:2x2"), model)
    prepare(trainer.new_run().spec, training=True)
    program = RunPrograms(trainer).training()
    lowered = lowering.lower(program)
    assert len(lowered.reduced) > 2
    (tmp_path / "program.mlir").write_bytes(lowered.module)
    _, trace = lowering.traced(program)
    variables = [
        next(v for v in trace.graph.variables if v.handle is handle)
        for handle in trace.captured_inputs
    ]
    arguments = [part.reshape(REPLICAS, -1, *part.shape[1:]) for part in DATA]
    arguments += [np.stack([v.numpy()] * REPLICAS) for v in variables]
    np.savez(tmp_path / "arguments.npz", *arguments)
    module = "tests.plugins.tpu_check.replicas_on_cpu"
    run_module(module, tmp_path, REPLICAS, root=root)
    with np.load(tmp_path / "results.npz") as file:
        found = {
            id(variables[int(key) - len(DATA)]): file[key] for key in file.files
        }
    expected = make("default", model)
    expected.train(1)
    pairs = zip(trainer.model.variables, expected.model.variables, strict=True)
    for a, b in pairs:
        replicas = found.get(id(a.value))
        if replicas is None:  # Dropout's seeds do not change.
            replicas = [a.numpy()] * REPLICAS
        for one in replicas:
            np.testing.assert_allclose(one, b.numpy(), rtol=0, atol=1e-5)
    changed = [id(v.value) in found for v in trainer.model.trainable_variables]
    assert all(changed)
    assert changed
