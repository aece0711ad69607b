"""Structures that `fit` takes give what `fit` gives on one device."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sets import long, one_in, ordinary
from trainer import ArrayExamples, Trainer, UserError

RNG = np.random.default_rng(3)
SIZE, BATCH = 24, 8
X = RNG.normal(size=(SIZE, 5)).astype("float32")
A = RNG.normal(size=(SIZE, 2)).astype("float32")
B = RNG.normal(size=(SIZE, 3)).astype("float32")
W = RNG.uniform(0.5, 2.0, SIZE).astype("float32")


def heads(structure):
    """A model of two outputs named a and b, in a list or a dict."""

    def build():
        inputs = keras.Input((5,))
        a = keras.layers.Dense(2, name="a")(inputs)
        b = keras.layers.Dense(3, name="b")(inputs)
        outputs = [a, b] if structure is list else {"a": a, "b": b}
        return keras.Model(inputs, outputs)

    return build


def one():
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3, "softmax", name="only")]
    )


def make(model, arrays, **options):
    return Trainer(
        **{
            "model": model,
            "optimizer": lambda: keras.optimizers.SGD(0.1),
            "data": lambda split: ArrayExamples(arrays, shuffle=False),
            "batch_size": BATCH,
            "strategy": "default",
            **options,
        }
    )


def compare(model, arrays, *, metrics=(), ours=None, **options):
    """Two epochs of `fit` and of the Trainer: logs and weights."""
    trainer = make(model, arrays, metrics=ours or metrics, **options)
    fitted = model()
    fitted.set_weights(trainer.model.get_weights())
    class_weight = options.pop("class_weight", None)
    fitted.compile(
        optimizer=keras.optimizers.SGD(0.1),
        weighted_metrics=metrics or None,
        **options,
    )
    x, y, *weight = arrays
    history = fitted.fit(
        x,
        y,
        sample_weight=weight[0] if weight else None,
        class_weight=class_weight,
        batch_size=BATCH,
        shuffle=False,
        epochs=2,
        verbose=0,
    ).history
    steps = SIZE // BATCH
    found = trainer.train(2 * steps, log_every=steps)
    assert set(found) == set(history)
    for name, values in history.items():
        assert found[name] == pytest.approx(values[-1], rel=1e-4), name
    for ours_, theirs in zip(
        trainer.model.get_weights(), fitted.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-4, atol=1e-6)


BY_NAME = {"a": "mse", "b": "mae"}


PARTIAL = {"loss": BY_NAME, "metrics": {"b": ["mae"]}}
WHOLE = {
    "loss": BY_NAME,
    "loss_weights": {"a": 0.5, "b": 3.0},
    "metrics": {"a": "mae", "b": ["mse", "mae"]},
}


@pytest.mark.parametrize(
    ("structure", "options"),
    ordinary(
        itertools.product((list, dict), ({"loss": "mse"}, PARTIAL, WHOLE)),
        [(list, WHOLE), (dict, PARTIAL)],
    ),
)
def test_several_outputs(structure, options):
    targets = [A, B] if structure is list else {"a": A, "b": B}
    compare(heads(structure), (X, targets), **options)


@pytest.mark.parametrize(
    "options",
    one_in(
        3,
        [
            {"loss": ["mse", "mae"], "metrics": [["mae"], ["mse", "mae"]]},
            {"loss": ["mse", "mae"], "loss_weights": [0.5, 2.0]},
            {"loss": ["mse", "mae"], "metrics": ["mae", "mse"]},
        ],
    ),
)
def test_several_outputs_in_a_list(options):
    compare(heads(list), (X, [A, B]), **options)


def shared():
    """Two outputs of one layer, which have one name in Keras."""
    inputs = keras.Input((5,))
    layer = keras.layers.Dense(2, name="shared")
    return keras.Model(inputs, [layer(inputs), layer(2.0 * inputs)])


def test_two_outputs_of_one_layer_are_told_apart_by_position():
    targets, weights = [A, 2.0 * A], [W, W[::-1]]
    options = {
        "loss": ["mse", "mae"],
        "loss_weights": [0.5, 3.0],
    }
    metrics = [["mae"], ["mae", "mse"]]
    arrays = (X, targets, weights)
    trainer = make(shared, arrays, **options, metrics=metrics)
    fitted = shared()
    fitted.set_weights(trainer.model.get_weights())
    fitted.compile(
        keras.optimizers.SGD(0.1), **options, weighted_metrics=metrics
    )
    history = fitted.fit(
        X,
        targets,
        sample_weight=weights,
        batch_size=BATCH,
        shuffle=False,
        epochs=2,
        verbose=0,
    ).history
    found = trainer.train(2 * SIZE // BATCH, log_every=SIZE // BATCH)
    names = {"loss", "shared_mae", "shared_mae_1", "shared_mse"}
    # Keras logs the loss of the last one alone.
    assert set(found) == {*names, "shared_loss", "shared_loss_1"}
    # Its name for the second of two weighted metrics of one name.
    history["shared_mae_1"] = history["shared_weighted_mae"]
    for name in names:
        assert found[name] == pytest.approx(history[name][-1], rel=1e-4), name
    last = history["shared_loss"][-1]
    assert found["shared_loss_1"] == pytest.approx(last, rel=1e-4)
    whole = 0.5 * found["shared_loss"] + 3.0 * found["shared_loss_1"]
    assert found["loss"] == pytest.approx(whole, rel=1e-5)
    for ours, theirs in zip(
        trainer.model.get_weights(), fitted.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"shared": "mse"}},
        {"loss": "mse", "metrics": {"shared": "mae"}},
    ],
)
def test_one_name_for_two_outputs_is_refused(options):
    with pytest.raises(UserError, match="several outputs .* Give a list"):
        make(shared, (X, [A, A]), **{"loss": "mse", **options}).train(1)


@pytest.mark.parametrize("one_hot", [long(False), True])
def test_weights_by_class(one_hot):
    labels = RNG.integers(0, 3, SIZE)
    targets = np.eye(3, dtype="float32")[labels] if one_hot else labels
    name = "categorical_crossentropy"
    compare(
        one,
        (X, targets),
        loss=name if one_hot else f"sparse_{name}",
        class_weight={0: 0.5, 2: 3.0},
    )


def sparse_inputs(source):
    dense = np.where(RNG.uniform(size=X.shape) > 0.6, X, 0.0)
    sparse = tf.sparse.from_dense(dense)

    def model():
        inputs = keras.Input((5,), sparse=True)
        return keras.Model(inputs, keras.layers.Dense(3)(inputs))

    def data(split):
        if source == "arrays":
            return ArrayExamples((sparse, B), shuffle=False)
        return tf.data.Dataset.from_tensor_slices((sparse, B)).batch(BATCH)

    return dense, model, data


@pytest.mark.parametrize(
    ("source", "micro"),
    [("arrays", 1), long("dataset", 1), long("arrays", 3), ("dataset", 3)],
)
def test_sparse_inputs(source, micro):
    dense, model, data = sparse_inputs(source)

    def kernel():
        inputs = keras.Input((5,))
        return keras.Model(inputs, keras.layers.Dense(3)(inputs))

    options = {"loss": "mse", "metrics": ["mae"], "accumulation_steps": micro}
    wanted = make(kernel, (dense, B), **options)
    trainer = make(model, (), **{**options, "data": data})
    found = trainer.train_and_evaluate(5, log_every=5)
    for name, value in wanted.train_and_evaluate(5, log_every=5).items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss": {"a": "mse", "bb": "mse"}},
            "`loss`: 'bb' is not an output .*keys",
        ),
        ({"loss": "mse", "metrics": {"c": ["mae"]}}, "Invalid `metrics`: 'c'"),
        ({"loss": "mse", "loss_weights": {"x": 1.0}}, "`loss_weights`: 'x'"),
        ({"loss": ["mse"] * 3}, "loss does not say .* outputs a, b"),
        ({"loss": "mse", "metrics": ["mae"]}, "metrics does not say"),
        ({"loss": "mse", "class_weight": {"a": 1.0}}, "class_weight = {'a'"),
        ({"loss": "mse", "class_weight": {0: 1.0}}, "for a single output"),
    ],
)
def test_what_belongs_to_no_output(options, message):
    with pytest.raises(UserError, match=message):
        make(heads(dict), (X, {"a": A, "b": B}), **options).train(1)
