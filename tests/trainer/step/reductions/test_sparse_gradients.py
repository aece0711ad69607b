"""Gradients of embeddings are those of the weights, not of the look-ups."""

import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from tests.trainer.step.reductions import sparse_cases as cases
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import Guard, Trainer
from trainer_plugins import Default

WAYS = {
    "plain": {},
    "accumulated": {"accumulation_steps": 2},
    "guarded": {"guard": Guard()},
    "compiled": {"jit_compile": True},
}


class Own(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)


def reference(name):
    """The same by plain Keras, which is handed dense gradients."""
    model, optimizer = cases.model(), cases.OPTIMIZERS[name]()
    words, y = cases.arrays()
    norms = []
    for step in range(cases.STEPS):
        part = slice(step * cases.BATCH, (step + 1) * cases.BATCH)
        with tf.GradientTape() as tape:
            error = model(words[part]) - y[part].astype("float32")
            loss = tf.reduce_mean(error**2)
        found = tape.gradient(loss, model.trainable_variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in found]
        norms.append(np.sqrt(sum(np.sum(np.square(g)) for g in dense)))
        optimizer.apply(dense, model.trainable_variables)
    weights = {f"weight{i}": w for i, w in enumerate(model.get_weights())}
    return weights, norms


@pytest.mark.parametrize(
    ("name", "way"),
    ordinary(
        [
            *((name, "plain") for name in cases.OPTIMIZERS),
            *(("global_clipnorm", way) for way in WAYS if way != "plain"),
            ("adam", "accumulated"),
            ("clipvalue", "compiled"),
        ],
        [
            *(("global_clipnorm", way) for way in WAYS),
            *((name, "plain") for name in ("clipnorm", "clipvalue", "adam")),
        ],
    ),
)
def test_rows_are_added_up_before_they_are_clipped(name, way):
    found = cases.trained(Default(), name, **WAYS[way])
    assert_close(found, reference(name)[0], tolerance=2e-6)


@pytest.mark.parametrize("kind", [Trainer, Own])
def test_a_guard_sees_the_norm_of_the_true_gradient(kind):
    _, norms = reference("momentum")
    guard = Guard(max_gradient_norm=float(norms[0]) * 0.99)
    with pytest.raises(Exception, match=f"gradient norm {norms[0]:.4g}"):
        cases.trained(Default(), "momentum", kind=kind, guard=guard)
    guard = Guard(max_gradient_norm=float(max(norms)) * 1.01)
    cases.trained(Default(), "momentum", kind=kind, guard=guard)


LONG = (("clipped", "central_storage_2"), ("adaptive", "mirrored_2"))


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("sparse")
    module = "tests.trainer.step.reductions.sparse_cases"
    return run_cases(module, request, directory, root, LONG)


@pytest.mark.parametrize(("case", "strategy"), pairs(cases.CASES, LONG))
def test_all_strategies_clip_alike(results, case, strategy):
    name = {"clipped": "global_clipnorm", "adaptive": "adam"}[case]
    found = found_in(results, case, strategy)
    assert_close(found, reference(name)[0], tolerance=2e-6)
