"""How far a strategy's results are from the reference."""

import numpy as np

from . import models, reference


def variables(case, prefix="variable"):
    """The arrays `prefix0`, `prefix1`, ... of a case."""
    found = []
    while f"{prefix}{len(found)}" in case:
        found.append(case[f"{prefix}{len(found)}"])
    return found


def difference(actual, expected):
    """The largest absolute difference; infinite where shapes differ."""
    if len(actual) != len(expected):
        return np.inf
    worst = 0.0
    for a, b in zip(actual, expected, strict=True):
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        if a.shape != b.shape or not np.isfinite(a).all():
            return np.inf
        worst = max(worst, float(np.max(np.abs(a - b), initial=0.0)))
    return worst


def weights(results):
    """Weights after 50 steps: Adam, clipping, L2, BatchNormalization."""
    case, expected = _parity(results)
    return difference(variables(case), expected["final"])


def loss(results):
    """The logged loss of each of 50 steps."""
    case, expected = _parity(results)
    return difference(case["losses"], expected["losses"])


def evaluation(results):
    """Loss and metric of an evaluation."""
    case, expected = _parity(results)
    return difference(
        case["eval"], reference.evaluate_regression(expected["final"])
    )


def metrics(results):
    """A metric over 20 steps with weights and uneven batches."""
    case, expected = _averaged(results)
    return difference([case["error"]], [expected["error"]])


def moving_average(results):
    """Averaged weights, and what they evaluate to."""
    case, expected = _averaged(results)
    kernel, bias, gamma, beta, kernel2, bias2 = expected["averages"]
    moments = expected["final"][4:6]
    averaged, _ = reference.evaluate_regression(
        [kernel, bias, gamma, beta, *moments, kernel2, bias2]
    )
    live, _ = reference.evaluate_regression(expected["final"])
    assert abs(averaged - live) > 1e-3, "they must differ to be told apart"
    return difference(
        [*variables(case), *variables(case, "average"), case["eval_loss"]],
        [*expected["final"], *expected["averages"], averaged],
    )


def masks(results):
    """Masked sequences: the denominator is the global mask."""
    case = results.case("masked_loss")
    expected, mean = reference.train_tokens(
        *variables(case, "initial_variable"), steps=12, rate=0.5
    )
    return difference([*variables(case), case["loss"]], [*expected, mean])


def weighted_mean(results):
    """`mean_with_sample_weight`: the denominator is the global weight."""
    case = results.case("weighted_denominator")
    kernel, bias = variables(case, "initial_variable")
    x, y, weight = (a.astype("float64") for a in models.binary_data())
    batch = slice(models.BATCH)
    scores = 1 / (1 + np.exp(-(x[batch] @ kernel + bias)))
    slope = (scores - y[batch]) * weight[batch, None] / weight[batch].sum()
    kernel = kernel - 0.5 * x[batch].T @ slope
    bias = bias - 0.5 * slope.sum(0)
    scores = (1 / (1 + np.exp(-(x @ kernel + bias))))[:, 0]
    right = (scores > 0.5) == (y[:, 0] > 0.5)
    values = -np.where(y[:, 0] > 0.5, np.log(scores), np.log(1 - scores))
    total = weight.sum()
    return difference(
        [*variables(case), case["loss"], case["binary_accuracy"]],
        [
            kernel,
            bias,
            np.sum(weight * values) / total,
            np.sum(weight * right) / total,
        ],
    )


def area_under_curve(results):
    """AUC of the evaluation; Keras' own is a sum over 1,000 thresholds."""
    case = results.case("weighted_denominator")
    kernel, bias = variables(case)
    x, y, weight = (a.astype("float64") for a in models.binary_data())
    scores = 1 / (1 + np.exp(-(x @ kernel + bias)))
    return difference(
        [case["auc"]], [reference.weighted_auc(y, scores, weight)]
    )


def own_step(results):
    """Two optimizers in a train_step of one's own."""
    case = results.case("own_train_step")
    kernel, bias, kernel2, bias2 = _floats(case, "initial_variable")
    x, y, _ = (a.astype("float64") for a in models.regression_data())
    x, y = x[: models.BATCH], y[: models.BATCH]
    hidden = np.maximum(x @ kernel + bias, 0)
    error = hidden @ kernel2 + bias2 - y
    slope = 2 * error / len(x)
    back = slope @ kernel2.T * (hidden > 0)
    return difference(
        [*_floats(case), case["loss"]],
        [
            kernel - 0.001 * x.T @ back,
            bias - 0.001 * back.sum(0),
            kernel2 - 0.01 * hidden.T @ slope,
            bias2 - 0.01 * slope.sum(0),
            np.mean(error**2),
        ],
    )


def global_loss(results):
    """A loss over pairs of examples: the gradient of all replicas' outputs."""
    case = results.case("loss_over_the_global_batch")
    expected, loss, evaluated = reference.train_views(
        *variables(case, "initial_variable")
    )
    return difference(
        [*variables(case), case["loss"], case["val_loss"]],
        [*expected, loss, evaluated],
    )


def resumed(results):
    """20 steps at once against 11 and 9: the arrays that differ in bytes."""
    case = results.case("resume")
    whole = {k: v for k, v in case.items() if k.startswith("whole_")}
    assert len(whole) > 8
    assert case["logs_equal"]
    return sum(
        value.tobytes() != case[key.replace("whole_", "parts_", 1)].tobytes()
        for key, value in whole.items()
    )


# What a synchronous strategy must match within `TOLERANCE`.
TOLERANCE = 1e-5
# By the name of a property: what compares it, and the case of `cases.py` that
# it reads.
PROPERTIES = {
    "weights": (weights, "parity"),
    "loss": (loss, "parity"),
    "evaluation": (evaluation, "parity"),
    "metrics": (metrics, "moving_average"),
    "EMA": (moving_average, "moving_average"),
    "masks": (masks, "masked_loss"),
    "weighted mean": (weighted_mean, "weighted_denominator"),
    "own step": (own_step, "own_train_step"),
    "resume": (resumed, "resume"),
}


def _regression(results, name, **options):
    case = results.case(name)
    if name not in results.references:
        results.references[name] = reference.train_regression(
            variables(case, "initial_variable"), micro=models.MICRO, **options
        )
    return case, results.references[name]


def _parity(results):
    return _regression(results, "parity", steps=50)


def _averaged(results):
    return _regression(results, "moving_average", steps=20, ema=0.9)


def _floats(case, prefix="variable"):
    """The weights among the variables: seed generators are integers."""
    return [v for v in variables(case, prefix) if v.dtype == "float32"]
