"""Every strategy gives the reference's numbers."""

import numpy as np

from tests.conformance import models, reference

TOLERANCE = 1e-5


def variables(case, prefix="variable"):
    found = []
    while f"{prefix}{len(found)}" in case:
        found.append(case[f"{prefix}{len(found)}"])
    return found


def assert_close(actual, expected, tolerance=TOLERANCE):
    assert len(actual) == len(expected)
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert np.shape(a) == np.shape(b), i
        worst = np.max(np.abs(np.asarray(a, "float64") - b), initial=0.0)
        assert worst <= tolerance, (i, worst)


def test_parity_of_weights_loss_and_evaluation(results):
    case = results.case("parity")
    expected = reference.train_regression(
        variables(case, "initial_variable"), steps=50, micro=models.MICRO
    )
    assert_close(case["losses"], expected["losses"])
    assert_close(variables(case), expected["final"])
    assert_close(case["eval"], reference.evaluate_regression(expected["final"]))


def test_metrics_are_those_of_all_examples(results):
    case = results.case("metrics_over_an_interval")
    expected = reference.train_regression(
        variables(case, "initial_variable"), steps=50, micro=models.MICRO
    )
    assert_close([case["error"]], [expected["error"]])


def test_moving_average_is_evaluated_and_taken_out_again(results):
    case = results.case("moving_average")
    expected = reference.train_regression(
        variables(case, "initial_variable"), steps=20, micro=1, ema=0.9
    )
    assert_close(variables(case), expected["final"])
    assert_close(variables(case, "average"), expected["averages"])
    kernel, bias, gamma, beta, kernel2, bias2 = expected["averages"]
    moments = expected["final"][4:6]
    loss, _ = reference.evaluate_regression(
        [kernel, bias, gamma, beta, *moments, kernel2, bias2]
    )
    assert_close([case["eval_loss"]], [loss])
    live, _ = reference.evaluate_regression(expected["final"])
    assert abs(loss - live) > 1e-3, "the two must differ to tell them apart"


def test_masked_loss_divides_by_the_global_mask(results):
    case = results.case("masked_loss")
    expected, loss = reference.train_tokens(
        *variables(case, "initial_variable"), steps=12, rate=0.5
    )
    assert_close(variables(case), expected)
    assert_close([case["loss"]], [loss])


def test_mean_with_sample_weight_divides_by_the_global_weight(results):
    case = results.case("weighted_denominator")
    kernel, bias = variables(case, "initial_variable")
    x, y, weight = (a.astype("float64") for a in models.binary_data())
    batch = slice(models.BATCH)
    scores = 1 / (1 + np.exp(-(x[batch] @ kernel + bias)))
    slope = (scores - y[batch]) * weight[batch, None] / weight[batch].sum()
    expected = [
        kernel - 0.5 * x[batch].T @ slope,
        bias - 0.5 * slope.sum(0),
    ]
    assert_close(variables(case), expected)
    kernel, bias = expected
    scores = (1 / (1 + np.exp(-(x @ kernel + bias))))[:, 0]
    right = (scores > 0.5) == (y[:, 0] > 0.5)
    values = -np.where(y[:, 0] > 0.5, np.log(scores), np.log(1 - scores))
    total = weight.sum()
    assert_close([case["loss"]], [np.sum(weight * values) / total])
    assert_close([case["binary_accuracy"]], [np.sum(weight * right) / total])
    # Keras' AUC is a sum over 1,000 thresholds.
    area = reference.weighted_auc(y, scores, weight)
    assert_close([case["auc"]], [area], tolerance=5e-3)


def test_float16_skips_overflow_everywhere_and_learns(results):
    case = results.case("half_precision")
    assert case["dtype"] == "float16"
    assert case["finite"]
    assert case["iterations_after_overflow"] == 0
    assert case["iterations"] == 59
    assert case["last"] < 0.7 * case["first"]


def test_replicas_drop_different_units_reproducibly(results):
    case = results.case("dropout")
    replicas = int(results["num_replicas"])
    assert case["first"].shape[0] == replicas
    rows = {row.tobytes() for row in case["first"]}
    assert len(rows) == replicas, "replicas share a mask"
    assert np.array_equal(case["first"], case["again"])
    assert not np.array_equal(case["first"], case["second"])
    assert not np.array_equal(case["first"], case["other"])
    drawn = np.concatenate([case[k] for k in ("first", "second", "other")])
    assert 0.3 < np.mean(drawn) < 0.7


def test_own_train_step_with_two_optimizers(results):
    case = results.case("own_train_step")
    kernel, bias, kernel2, bias2 = [
        v for v in variables(case, "initial_variable") if v.dtype == "float32"
    ]
    x, y, _ = (a.astype("float64") for a in models.regression_data())
    x, y = x[: models.BATCH], y[: models.BATCH]
    hidden = np.maximum(x @ kernel + bias, 0)
    error = hidden @ kernel2 + bias2 - y
    slope = 2 * error / len(x)
    back = slope @ kernel2.T * (hidden > 0)
    expected = [
        kernel - 0.001 * x.T @ back,
        bias - 0.001 * back.sum(0),
        kernel2 - 0.01 * hidden.T @ slope,
        bias2 - 0.01 * slope.sum(0),
    ]
    actual = [v for v in variables(case) if v.dtype == "float32"]
    assert_close(actual, expected)
    assert_close([case["loss"]], [np.mean(error**2)])


def test_resumed_run_has_the_same_bytes(results):
    case = results.case("resume")
    whole = {k: v for k, v in case.items() if k.startswith("whole_")}
    assert len(whole) > 8
    for key, value in whole.items():
        other = case[key.replace("whole_", "parts_", 1)]
        assert value.tobytes() == other.tobytes(), key
    assert case["logs_equal"]


def test_callbacks_are_called_in_order(results):
    events = [str(e) for e in results.case("callback_order")["events"]]
    # Every event goes to both callbacks, so each stands twice in a row.
    assert events[::2] == events[1::2]
    assert events[::2] == [
        "setup",
        "on_train_begin",
        "on_epoch_begin 0",
        "on_train_batch_begin 0",
        "on_train_batch_end 2",
        "log train 3",
        "on_save 3",
        "on_train_batch_begin 3",
        "on_train_batch_end 4",
        "on_test_begin",
        "on_test_end",
        "log eval 5",
        "on_epoch_end 0",
        "on_epoch_begin 1",
        "on_save 5",
        "on_train_batch_begin 0",
        "on_train_batch_end 0",
        "log train 6",
        "on_save 6",
        "on_train_batch_begin 1",
        "on_train_batch_end 1",
        "on_test_begin",
        "on_test_end",
        "log train 7",
        "log eval 7",
        "on_save 7",
        "on_train_end",
        "close",
    ]
