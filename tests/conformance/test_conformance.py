"""Every strategy gives the reference's numbers."""

import numpy as np
import pytest

from . import compare, models, running

reads = pytest.mark.case


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=reads(case))
        for name, (_, case) in compare.PROPERTIES.items()
    ],
)
def test_agrees_with_the_reference(results, name):
    difference_of, _ = compare.PROPERTIES[name]
    assert difference_of(results) <= compare.TOLERANCE


@reads("weighted_denominator")
def test_area_under_curve(results):
    assert compare.area_under_curve(results) <= 5e-3


@reads("loss_over_the_global_batch")
def test_a_loss_over_the_global_batch(results):
    assert compare.global_loss(results) <= compare.TOLERANCE


@reads("metrics_in_order")
def test_metrics_that_need_the_batches_order(results):
    case = results.case("metrics_in_order")
    assert "'decaying' (Decaying) does not add up" in str(case["refused"])
    assert ("not_evaluated" in case) is not bool(results["evaluates_here"])
    if "not_evaluated" in case:
        return
    _, y, weight = models.regression_data()
    error = weight * np.abs(y - case["predicted"])[:, 0]
    steps = -(-len(error) // models.BATCH)
    total = 0.0
    for step in range(steps):
        part = slice(step * models.BATCH, (step + 1) * models.BATCH)
        total = 0.5 * total + error[part].sum()
    assert steps == 5
    assert case["eval"] == pytest.approx(total, rel=1e-5)


@reads("half_precision")
def test_float16_skips_overflow_everywhere_and_learns(results):
    case = results.case("half_precision")
    assert case["dtype"] == "float16"
    assert case["finite"]
    assert case["iterations_after_overflow"] == 0
    assert case["iterations"] == 59
    assert case["last"] < 0.7 * case["first"]


@reads("dropout")
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


@reads("callback_order")
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
        # What is logged here exists only because the run ends: it is shown to
        # loggers, and to no other callback.
        "on_save 7",
        "on_train_end",
        "close",
    ]


def test_restores_the_checkpoints_of_all(restoring, saving, tmp_path):
    sources = [results.directory for results in saving]
    found = running.run(restoring, str(tmp_path), "--restore", *sources)
    for i, results in enumerate(saving):
        restored = found.case(f"restored{i}")
        saved = {
            key.removeprefix("saved_"): value
            for key, value in results.case("moving_average").items()
            if key.startswith("saved_")
        }
        assert len(saved) > 20
        for key, value in saved.items():
            if key == "eval":
                assert abs(value - restored[key]) <= 1e-5
            else:
                assert np.array_equal(value, restored[key]), (i, key)
