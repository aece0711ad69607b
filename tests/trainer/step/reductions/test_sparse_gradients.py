"""Gradients of embeddings are those of the weights, not of the look-ups."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import ArrayExamples, Guard, Trainer
from trainer_plugins import Default

VOCABULARY, BATCH, STEPS = 5, 8, 3
OPTIMIZERS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
}


def arrays():
    rng = np.random.default_rng(2)
    words = rng.integers(0, VOCABULARY, size=(BATCH * STEPS, 4))
    words[:, 0] = 1  # One row is in every example.
    return words.astype("int32"), rng.normal(size=(len(words), 1))


def model():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(
                VOCABULARY, 3, embeddings_initializer="ones"
            ),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def trained(strategy, optimizer, **options):
    words, y = arrays()
    trainer = Trainer(
        model=model,
        loss="mse",
        optimizer=OPTIMIZERS[optimizer],
        data=lambda split: ArrayExamples(
            (words, y.astype("float32")), shuffle=False
        ),
        batch_size=BATCH,
        strategy=strategy,
        **options,
    )
    trainer.train(STEPS)
    weights = trainer.model.get_weights()
    return {f"weight{i}": value for i, value in enumerate(weights)}


def clipped(strategy):
    return trained(strategy, "global_clipnorm", guard=Guard())


def adaptive(strategy):
    return trained(strategy, "adam")


CASES = {
    clipped: ("mirrored_3", "central_storage_2"),
    adaptive: ("mirrored_2", "central_storage_2"),
}


WAYS = {
    "plain": {},
    "accumulated": {"accumulation_steps": 2},
    "guarded": {"guard": Guard()},
    "compiled": {"jit_compile": True},
}


def reference(name):
    """The same by plain Keras, which is handed dense gradients."""
    net, optimizer = model(), OPTIMIZERS[name]()
    words, y = arrays()
    norms = []
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        with tf.GradientTape() as tape:
            error = net(words[part]) - y[part].astype("float32")
            loss = tf.reduce_mean(error**2)
        found = tape.gradient(loss, net.trainable_variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in found]
        norms.append(np.sqrt(sum(np.sum(np.square(g)) for g in dense)))
        optimizer.apply(dense, net.trainable_variables)
    weights = {f"weight{i}": w for i, w in enumerate(net.get_weights())}
    return weights, norms


@pytest.mark.parametrize(
    ("name", "way"),
    ordinary(
        [
            *((name, "plain") for name in OPTIMIZERS),
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
    found = trained(Default(), name, **WAYS[way])
    assert_close(found, reference(name)[0], tolerance=2e-6)


def test_a_guard_sees_the_norm_of_the_true_gradient():
    _, norms = reference("momentum")
    guard = Guard(max_gradient_norm=float(norms[0]) * 0.99)
    with pytest.raises(Exception, match=f"gradient norm {norms[0]:.4g}"):
        trained(Default(), "momentum", guard=guard)
    guard = Guard(max_gradient_norm=float(max(norms)) * 1.01)
    trained(Default(), "momentum", guard=guard)


LONG = (("clipped", "central_storage_2"), ("adaptive", "mirrored_2"))


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("sparse")
    module = "tests.trainer.step.reductions.test_sparse_gradients"
    return run_cases(module, request, directory, root, LONG)


@pytest.mark.parametrize(("case", "strategy"), pairs(CASES, LONG))
def test_all_strategies_clip_alike(results, case, strategy):
    name = {"clipped": "global_clipnorm", "adaptive": "adam"}[case]
    found = found_in(results, case, strategy)
    assert_close(found, reference(name)[0], tolerance=2e-6)
