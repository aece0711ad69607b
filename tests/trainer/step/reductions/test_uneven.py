"""Pieces with few examples count as few, and without one for nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.step.reductions import uneven_cases as cases
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)

# Of each case the ordinary set has one strategy, with the most replicas that
# can tell a mistake.
LONG = (
    ("means", "default"),
    ("means", "mirrored_2"),
    ("means", "central_storage_2"),
    ("micro_batches", "default"),
    ("unsynchronized", "mirrored_3"),
    ("masked_norm", "central_storage_2"),
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("uneven")
    module = "tests.trainer.step.reductions.uneven_cases"
    return run_cases(module, request, directory, root, LONG)


def batches(arrays=cases.arrays):
    x, y = arrays()
    for step in range(cases.STEPS):
        begin = step % 3 * cases.BATCH
        yield x[begin : begin + cases.BATCH], y[begin : begin + cases.BATCH]


def reference(*, micro=1, added=True):
    """The same by plain Keras on one device, batch by batch."""
    model = cases.model()
    optimizer = keras.optimizers.SGD(cases.RATE / 10)
    total, count = 0.0, 0
    variables = model.trainable_variables
    for x, y in batches():
        gradients = [0.0] * len(variables)
        for part in np.array_split(np.arange(len(x)), micro):
            if not len(part):
                continue
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    (model(x[part], training=True) - y[part]) ** 2
                )
                if added:
                    loss += tf.add_n(model.losses)
                loss *= len(part) / len(x)
            found = tape.gradient(loss, variables)
            gradients = [a + b for a, b in zip(gradients, found, strict=True)]
            total += float(loss) * len(x)
        count += len(x)
        optimizer.apply(gradients, variables)
    expected = cases.kept(model.get_layer("keeping"))
    return expected | {"loss": total / count}


def unsynchronized(replicas):
    """The moving statistics of replicas that each have their own."""
    mean, variance = np.zeros(3), np.ones(3)
    for x, _ in batches():
        parts = [p for p in np.array_split(x, replicas) if len(p)]
        mean = 0.5 * mean + 0.5 * x.mean(0)
        within = sum(len(p) / len(x) * p.var(0) for p in parts)
        variance = 0.5 * variance + 0.5 * within
    return {"mean": mean, "variance": variance, "finite": True}


def variance_far_away():
    variance = np.ones(3)
    for x, _ in batches():
        variance = 0.5 * variance + 0.5 * (x + np.float32(1000)).var(0)
    return {"variance": variance}


def evaluated():
    x, y = cases.arrays()
    error = np.sum((x.sum(1, keepdims=True) - y) ** 2, 1)
    return {"loss": np.mean(error) + np.mean(x**2)}


def added_sums():
    model = cases.summing_model()
    optimizer = keras.optimizers.SGD(cases.RATE / 10)
    total, count, sums = 0.0, 0, []
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) + tf.add_n(model.losses)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        # A sum is logged as the mean of the steps' sums.
        error = loss - model.losses[0]
        total, count = total + float(error) * len(x), count + len(x)
        sums.append(float(model.losses[0]))
    return {
        "loss": total / count + np.mean(sums),
        "scale": model.get_layer("summing").scale.numpy(),
    }


def fitted_behind_a_mask():
    model = cases.masked_norm_model()
    model.compile(keras.optimizers.SGD(cases.RATE / 10), "mse")
    for x, y in batches(cases.tokens):
        model.reset_metrics()
        loss = model.train_on_batch(x, y)
    weights = model.get_weights()
    return {"loss": float(loss)} | {
        f"weight{i}": value for i, value in enumerate(weights)
    }


EXPECTED = {
    "masked_norm": lambda replicas: fitted_behind_a_mask(),
    "far_norm": lambda replicas: variance_far_away(),
    "sums": lambda replicas: added_sums(),
    "means": lambda replicas: reference(),
    "guarded": lambda replicas: reference(),
    "micro_batches": lambda replicas: reference(micro=2),
    "own_step": lambda replicas: reference(added=False) | {"plain": 3.0},
    "evaluation": lambda replicas: evaluated(),
    "unsynchronized": unsynchronized,
}


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        pair
        for pair in pairs(cases.CASES, LONG)
        if getattr(pair, "values", pair)[0] in EXPECTED
    ],
)
def test_equals_one_device(results, case, strategy):
    replicas = int(strategy[-1]) if strategy[-1].isdigit() else 1
    found = found_in(results, case, strategy)
    assert_close(found, EXPECTED[case](replicas))


def test_sums_that_nobody_decided_on_are_refused(results):
    found = found_in(results, "refused", "mirrored_2")
    assert "'summing' passes what is no mean over the" in str(found["added"])
    assert "Trainer.added_losses = {'summing': 'sum'}" in str(found["added"])
    for dtype in ("float", "int"):
        assert "keeps what is no mean over the batch" in str(found[dtype])
        assert "aggregation='sum'" in str(found[dtype])
    assert not str(found["decided"])
