"""A loss over the global batch is that of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import ordinary
from tests.trainer.step.reductions import gather_cases as cases
from tests.trainer.step.reductions.exact import (
    assert_close,
    found_in,
    pairs,
    run_cases,
)
from trainer import Trainer, UserError
from trainer_experiments.contrastive import SimCLR, nt_xent

LONG = (
    ("even", "one_device"),
    ("uneven", "mirrored_2"),
    ("numbered", "central_storage_2"),
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("gather")
    module = "tests.trainer.step.reductions.gather_cases"
    return run_cases(module, request, directory, root, LONG)


def contrast(y, y_pred):
    return nt_xent(y_pred, 0.5)


def reference(loss_of, sizes):
    """The same by plain Keras on one device, batch by batch."""
    batch, size = cases.SIZES[sizes]
    model, optimizer = cases.model(), keras.optimizers.SGD(cases.RATE)
    x, y = cases.arrays(size)
    parts = [slice(i, i + batch) for i in range(0, size, batch)]
    counts = [len(y[part]) for part in parts]
    losses, weights = [], []
    for step in range(cases.STEPS):
        part = parts[step % len(parts)]
        with tf.GradientTape() as tape:
            loss = loss_of(y[part], model(x[part]))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        losses.append(float(loss))
        weights.append(counts[step % len(parts)])
    evaluated = [float(loss_of(y[part], model(x[part]))) for part in parts]
    expected = {
        f"weight{i}": value for i, value in enumerate(model.get_weights())
    }
    return expected | {
        "loss": np.average(losses, weights=weights),
        "val_loss": np.average(evaluated, weights=counts),
    }


EXPECTED = {
    "even": lambda: reference(contrast, "even"),
    "uneven": lambda: reference(contrast, "uneven"),
    "keras_losses": lambda: reference(cases.of_keras, "uneven"),
    "by_hand": lambda: reference(cases.of_keras, "uneven"),
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
    expected = EXPECTED[case]()
    if case == "by_hand":  # It has no eval_step.
        del expected["val_loss"]
    assert_close(found_in(results, case, strategy), expected)


@pytest.mark.parametrize(
    "strategy", ordinary(cases.CASES[cases.numbered], ["mirrored_3"])
)
def test_rows_come_in_the_replicas_order(results, strategy):
    found = found_in(results, "numbered", strategy)
    x = cases.arrays(5)[0][:, 0, 0]
    order = np.arange(1, 6)
    replicas = int(strategy[-1]) if strategy[-1].isdigit() else 1
    rows = np.concatenate(
        [np.arange(len(part)) for part in np.array_split(x, replicas)]
    )
    expected = {
        "float": np.sum(order * x),
        "half": np.sum(order * x.astype("float16").astype("float64")),
        "int": np.sum(order * rows),
        "byte": np.sum(order * (rows + 250)),
        "flag": np.sum(order * (x > 0)),
        "error": 0.0,
    }
    assert_close(found, expected)


def test_replicas_draw_the_same_in_the_loss(results):
    one = found_in(results, "drawn", "default")["loss"]
    assert 0 < one < 128
    assert_close(found_in(results, "drawn", "mirrored_2"), {"loss": one})


def small(kind=SimCLR, **options):
    return cases.trainer_of("default", kind, batch=8, size=8, **options)


def test_what_cuts_or_weighs_the_batch_is_refused():
    with pytest.raises(UserError, match="accumulation_steps = 2 would cut"):
        small(accumulation_steps=2)
    with pytest.raises(UserError, match="class_weight cannot be applied"):
        small(class_weight={0: 2.0})
    x, y = cases.arrays(8)
    with pytest.raises(UserError, match="SimCLR.global_loss does not get"):
        small(data=lambda split: (x, y, np.ones(8, "float32"))).train(1)


def test_a_global_loss_that_is_no_scalar_is_refused():
    class Rows(Trainer):
        def global_loss(self, y, y_pred):
            return y_pred

    with pytest.raises(UserError, match=r"Rows.global_loss .* a scalar"):
        small(Rows).train(1)


@pytest.mark.parametrize("part", [tf.constant(1.0), tf.constant(["a"])])
def test_what_cannot_be_gathered_is_refused(part):
    with pytest.raises(UserError, match=r"shape \[rows, ...\]"):
        small().all_gather(part)


def test_it_is_added_to_losses_by_example():
    class Both(Trainer):
        def global_loss(self, y, y_pred):
            return tf.reduce_sum(y_pred) * 0 + 3.0

    zero = keras.losses.MeanSquaredError()
    x, y = cases.arrays(8)
    trainer = small(Both, loss=zero, data=lambda split: (x, x[..., :3]))
    error = np.mean((trainer.model(x) - x[..., :3]) ** 2)
    assert trainer.evaluate()["loss"] == pytest.approx(error + 3, rel=1e-5)
