"""Losses, metrics and data that `fit` takes give what it gives, or a sentence.

See `tests.trainer.step.losses.as_fit` for the cases.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer.step.losses import as_fit
from tests.trainer.step.reductions.exact import found_in, pairs, run_cases
from trainer import ArrayExamples, Trainer, UserError
from trainer.step.keras.private import tensors_apart

LONG = [(one.name, name) for one in as_fit.ALL for name in as_fit.LONG]
# What is wrong on one device is wrong on three, too; but for what is refused
# there, of which one of two is in the ordinary set.
REFUSED = [one for one in as_fit.ALL if one.refused and not one.everywhere]
LONG += [(one.name, "default") for one in as_fit.ALL if one not in REFUSED[::2]]
BY_NAME = {one.name: one for one in as_fit.ALL}


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    module = "tests.trainer.step.losses.as_fit"
    directory = tmp_path_factory.mktemp("as_fit")
    return run_cases(module, request, directory, root, LONG)


@pytest.mark.parametrize(("name", "strategy"), pairs(as_fit.CASES, LONG))
def test_as_fit(name, strategy, results):
    found, case = found_in(results, name, strategy), BY_NAME[name]
    assert "crashed" not in found, found
    if case.refused and (case.everywhere or strategy != "default"):
        assert re.search(case.refused, str(found["refused"])), found
        return
    assert "refused" not in found, found
    assert found["weights"] < 1e-5
    ours, theirs = found["names"]
    assert set(theirs.split()) <= set(ours.split())
    for key, pair in found.items():
        if key.startswith("log "):
            np.testing.assert_allclose(*pair, rtol=2e-5, err_msg=key)


def test_what_each_part_gets_whole_is_added_to_its_examples():
    def put(x, y):
        return (tf.constant(as_fit.TABLE), x), y

    def weights(**options):
        case = as_fit.PARTS[0]
        model = case.made()
        arrays = ArrayExamples((as_fit.X, as_fit.A), transform=put)
        trainer = Trainer(model, data=arrays, batch_size=8, **options)
        trainer.train(4, verbose=0)
        return model.get_weights()

    whole, cut = weights(), weights(accumulation_steps=3)
    for ours, its in zip(cut, whole, strict=True):
        np.testing.assert_allclose(ours, its, atol=1e-5)


def test_logits_go_along_where_examples_are_gathered():
    """In every process they are those of a batch; here of a single one."""
    y_pred = keras.ops.softmax(as_fit.CLASSES["x"][:, :3])
    tensors, put_back = tensors_apart({"y_pred": y_pred, "of": 3})
    again = put_back([part[::2] for part in tensors])["y_pred"]
    wanted = as_fit.of_examples(as_fit.CLASSES["y"], y_pred)[::2]
    assert float(keras.ops.max(wanted)) > 100
    found = as_fit.of_examples(as_fit.CLASSES["y"][::2], again)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_unequal_inputs_are_named():
    x = {"long": as_fit.X, "short": as_fit.X[:9]}
    for given in (x, dict(reversed(x.items()))):
        with pytest.raises(UserError, match=r"x\['short'\] has 9"):
            Trainer(as_fit.dense("a"), loss="mse").fit(given, as_fit.A)


# Terms of research code.


def tagger(outputs=1):
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(6, 3, mask_zero=True)(inputs)
    made = [keras.layers.Dense(1, name=f"out_{i}")(x) for i in range(outputs)]
    return keras.Model(inputs, made if outputs > 1 else made[0])


RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 6, (16, 4))
TAGS = RNG.normal(size=(16, 4, 1)).astype("float32")
WEIGHTS = RNG.uniform(0.5, 2.0, 16).astype("float32")


def terms_as(*names):
    """A Trainer whose loss has two terms of these names."""

    class Terms(Trainer):
        def per_example_loss(self, x, y, y_pred):
            y, y_pred = (keras.tree.flatten(one)[-1] for one in (y, y_pred))
            error = y - y_pred
            values = (
                keras.ops.mean(error**2, -1),
                keras.ops.mean(abs(error), -1),
            )
            return dict(zip(names, values, strict=True))

    return Terms


def trained(model, kind=Trainer, weight=WEIGHTS, **options):
    keras.utils.set_random_seed(1)
    count = len(model.outputs)
    model.compile(keras.optimizers.SGD(0.1), **options)
    y = [TAGS] * count if count > 1 else TAGS
    data = ArrayExamples((IDS, y, weight)[: 3 if weight is not None else 2])
    trainer = kind(model, data=data, batch_size=8, strategy="default")
    trainer.train(4, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("names", "outputs", "losses"),
    [
        (("rate", "distortion"), 1, ["mse", "mae"]),
        (("out_1/rate", "out_1"), 2, [None, ["mse", "mae"]]),
    ],
)
def test_terms_of_an_output_have_its_mask_and_weights(names, outputs, losses):
    model = tagger(outputs)
    before = model.get_weights()
    expected = trained(model, loss=losses)
    model.set_weights(before)
    for ours, its in zip(
        trained(model, terms_as(*names)), expected, strict=True
    ):
        np.testing.assert_allclose(ours, its, atol=1e-5)


def test_a_term_of_no_output_is_refused_where_something_would_be_dropped():
    for weight in (None, WEIGHTS):
        with pytest.raises(UserError, match="'rate'.*as in 'out_0/rate'"):
            trained(tagger(2), terms_as("rate", "out_1"), weight)
