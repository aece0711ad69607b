"""Batches of one shape change no number: NumPy says what is right."""

import itertools

import numpy as np
import pytest

from tests.conformance import models, reference
from tests.helpers import run_worker
from tests.sets import is_long, ordinary

BATCH, SIZE = 12, 26
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight")
# The worker's cases in the ordinary set; in the long set it runs all.
CHOSEN = (
    "sum_2_examples",
    "mean_with_sample_weight_3_dataset",
    "masked_mean_with_sample_weight_3",
    "structures",
    "infinite",
    "own_step",
    "delegated",
    "reducing_evaluation",
    "reducing_training",
    "looping_accumulation",
    "in_order",
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("static")
    worker = "tests.trainer.data.static_worker"
    chosen = () if is_long(request) else CHOSEN
    return run_worker(worker, *chosen, directory=directory, root=root)


def case(results, name):
    found = {
        key.removeprefix(f"{name}."): value
        for key, value in results.items()
        if key.startswith(f"{name}.")
    }
    assert found, name
    return found


def arrays():
    rng = np.random.default_rng(11)
    x = rng.normal(size=(SIZE, 4)).astype("float32")
    y = (x[:, :1] + rng.normal(size=(SIZE, 1)) > 0).astype("float32")
    weight = rng.uniform(0.2, 2.0, size=SIZE).astype("float32")
    return [part.astype("float64") for part in (x, y[:, 0], weight)]


def scores_of(x, kernel, bias):
    return 1 / (1 + np.exp(-(x @ kernel + bias)[:, 0]))


def mean_loss(values, weight, name, *, weighted):
    """What a loss of a Keras reduction is over all batches."""
    total = np.sum(values * weight)
    if name == "sum":
        return total / -(-SIZE // BATCH)
    if name == "mean_with_sample_weight" and weighted:
        return total / np.sum(weight)
    return total / SIZE


@pytest.mark.parametrize(
    ("name", "weighted", "source"),
    ordinary(
        [
            *itertools.product(REDUCTIONS, (False, True), ("examples",)),
            (REDUCTIONS[2], True, "dataset"),
        ],
        [
            (REDUCTIONS[1], False, "examples"),
            (REDUCTIONS[2], True, "dataset"),
        ],
    ),
)
def test_evaluation_counts_each_example_once(results, name, weighted, source):
    found = case(results, f"{name}_{2 + weighted}_{source}")
    _check_evaluation(found, name, weighted=weighted)


def test_logs_reduced_within_the_step_are_counted_once(results):
    found = case(results, "reducing_evaluation")
    _check_evaluation(found, "sum_over_batch_size", weighted=True)


def _check_evaluation(found, name, *, weighted):
    x, y, weight = arrays()
    if not weighted:
        weight = np.ones(SIZE)
    kernel, bias = found["weight0"], found["weight1"]
    scores = scores_of(x, kernel, bias)
    values = -np.where(y > 0.5, np.log(scores), np.log(1 - scores))
    penalty = 0.01 * np.sum(kernel.astype("float64") ** 2)
    right = (scores > 0.5) == (y > 0.5)
    expected = {
        "loss": mean_loss(values, weight, name, weighted=weighted) + penalty,
        "binary_accuracy": np.sum(weight * right) / np.sum(weight),
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-5), key
    # Keras' AUC is a sum over 1,000 thresholds.
    area = reference.weighted_auc(y, scores, weight)
    assert found["auc"] == pytest.approx(area, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "weighted"),
    ordinary(
        itertools.product((REDUCTIONS[0], REDUCTIONS[2]), (False, True)),
        [(REDUCTIONS[2], True)],
    ),
)
def test_masks_leave_out_padding_too(results, name, weighted):
    found = case(results, f"masked_{name}_{2 + weighted}")
    tokens, labels = (part[:SIZE] for part in models.token_data())
    weight = arrays()[2] if weighted else np.ones(SIZE)
    mask = (tokens != 0).astype("float64") * weight[:, None]
    embedding, kernel, bias = (
        found[f"weight{i}"].astype("float64") for i in range(3)
    )
    logits = embedding[tokens] @ kernel + bias
    logits -= np.log(np.sum(np.exp(logits), -1, keepdims=True))
    values = -np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    count = np.sum(tokens != 0)
    if name == "mean_with_sample_weight":
        count = np.sum(mask)
    assert found["loss"] == pytest.approx(
        np.sum(mask * values) / count, abs=1e-5
    )
    right = np.argmax(logits, -1) == labels
    assert found["sparse_categorical_accuracy"] == pytest.approx(
        np.sum(mask * right) / np.sum(mask), abs=1e-5
    )


def test_structures_with_weights_by_output_and_an_added_loss(results):
    found = case(results, "structures")
    x, y, weight = arrays()
    hidden = 3 * x
    p = (hidden @ found["weight0"] + found["weight1"])[:, 0]
    q = hidden @ found["weight2"] + found["weight3"]
    loss = np.mean(weight * (p - y) ** 2)
    loss += np.mean(np.abs(q - x[:, :2])) + 3.0
    assert found["loss"] == pytest.approx(loss, abs=1e-4)
    error = np.sum(weight * np.abs(p - y)) / np.sum(weight)
    assert found["p_mean_absolute_error"] == pytest.approx(error, abs=1e-5)


def test_padding_meets_the_model_as_an_example(results):
    found = case(results, "infinite")
    penalty = 0.01 * np.sum(found["weight0"].astype("float64") ** 2)
    expected = -np.mean(arrays()[0][:, 0]) + penalty
    assert found["loss"] == pytest.approx(expected, abs=1e-5)


def test_an_eval_step_of_ones_own_sees_weights(results):
    found = case(results, "own_step")
    assert found["mean"] == pytest.approx(np.mean(arrays()[1]), abs=1e-6)


def test_an_eval_step_that_delegates_counts_examples(results):
    found = case(results, "delegated")
    x, y, weight = arrays()
    scores = scores_of(x, found["weight0"], found["weight1"])
    penalty = 0.01 * np.sum(found["weight0"].astype("float64") ** 2)
    expected = np.sum(weight * (scores - y) ** 2) / SIZE + penalty
    assert found["loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "name",
    ordinary(
        [
            "train_examples",
            "train_dataset",
            "reducing_training",
            "accumulation",
            "looping_accumulation",
        ],
        ["reducing_training", "looping_accumulation"],
    ),
)
def test_training_leaves_out_short_batches(results, name):
    found = case(results, name)
    assert found["steps_per_epoch"] == 2
    kernel, bias = (found[f"initial{i}"].astype("float64") for i in (0, 1))
    x, y, weight = arrays()
    losses = []
    for step in range(5):
        part = slice(step % 2 * BATCH, step % 2 * BATCH + BATCH)
        scores = scores_of(x[part], kernel, bias)
        error = scores - y[part]
        losses.append(
            np.mean(weight[part] * error**2) + 0.01 * np.sum(kernel**2)
        )
        slope = 2 * weight[part] * error * scores * (1 - scores) / BATCH
        kernel_slope = x[part].T @ slope[:, None] + 0.02 * kernel
        kernel = kernel - 0.5 * kernel_slope
        bias = bias - 0.5 * np.sum(slope)
    np.testing.assert_allclose(found["weight0"], kernel, atol=1e-5)
    np.testing.assert_allclose(found["weight1"], bias, atol=1e-5)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("kind", ordinary(["", "reducing_"], [""]))
def test_metrics_that_do_not_add_up_see_examples_alone(results, kind):
    found = case(results, f"{kind}in_order")
    x, y, weight = arrays()
    scores = found["scores"][:, 0].astype("float64")

    def decayed(rows, steps):
        total = 0.0
        for step in range(steps):
            start = step % len(rows) * BATCH
            part = slice(start, start + rows[step % len(rows)])
            error = weight[part] * np.abs(scores - y)[part]
            total = 0.5 * total + error.sum()
        return total

    # Evaluation fills the short batch up.
    wanted = decayed([12, 12, 2], 3)
    assert found["decaying"] == pytest.approx(wanted, rel=1e-4)
    assert found["last"] == pytest.approx(scores[25], rel=1e-4)
