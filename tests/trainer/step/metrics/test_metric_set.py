"""Every metric gives what Keras' own object gives, fed batch by batch."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import ARRAYS, linear, make_trainer, run_module
from tests.sets import is_long, long
from tests.trainer.step.metrics import metric_models as m
from trainer import Trainer, UserError, average
from trainer_plugins import Checkpoint, Default


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("metrics")
    worker = "tests.trainer.step.metrics.metric_worker"
    names = ["mirrored:2", "mirrored:3"]
    if is_long(request):
        names += ["default", "central_storage:2"]
    run_module(worker, directory, *names, root=root)
    return json.loads((directory / "results.json").read_text())


KERAS = pytest.mark.parametrize("strategy", ["mirrored:3", long("default")])


def logged(values, name, prefix=""):
    """What is logged of a metric: one value, or one for each class."""
    name = prefix + name
    if name in values:
        return [values[name]]
    found = []
    while f"{name}_{len(found)}" in values:
        found.append(values[f"{name}_{len(found)}"])
    return found


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:You are passing weight as `float`")
@pytest.mark.parametrize("name", sorted(m.keras_classes()))
@KERAS
def test_metrics_of_keras(results, name, strategy):
    family = m.family(name)
    values = results[strategy]["keras"]
    for make in m.made(name):
        wanted = m.expected(make, m.data(family), steps=3)
        close(logged(values, f"{family}_{make().name}"), wanted)


@KERAS
def test_auc_of_several_labels(results, strategy):
    make = next(f for f in m.metrics_of("one_hot") if f().name == "multi_label")
    wanted = m.expected(make, m.data("one_hot"), steps=3)
    found = logged(results[strategy]["keras"], "one_hot_multi_label")
    close(found, wanted)


@pytest.mark.parametrize("name", [*m.CUSTOM, *m.UNWEIGHTED])
@pytest.mark.parametrize("prefix", ["", "val_"])
@pytest.mark.parametrize(
    "strategies",
    [("mirrored:2", "mirrored:3"), long(("central_storage:2", "default"))],
    ids=" ".join,
)
def test_metrics_that_do_not_add_up(results, name, prefix, strategies):
    arrays = m.data("regression")
    weighted = name in m.CUSTOM
    if not weighted:
        arrays = arrays[:2]
    make = (m.CUSTOM | m.UNWEIGHTED)[name]
    steps = 3 if prefix else m.STEPS - 1
    wanted = m.expected(make, arrays, steps)
    for strategy in strategies:
        if not weighted and strategy not in ("default", "mirrored:3"):
            continue
        values = results[strategy]["custom" if weighted else "unweighted"]
        if name == "several":
            found = [values[f"{prefix}{k}"] for k in ("total", "first")]
        else:
            found = logged(values, name, prefix)
        close(found, wanted)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@KERAS
def test_metrics_in_layers_are_logged_as_fit_logs_them(results, strategy):
    x, y, _ = m.data("regression")
    model = m.measuring_model()
    model.compile(loss=m.nothing, optimizer=keras.optimizers.SGD(0.0))
    steps = -(-m.SIZE // m.BATCH)
    fitted = model.fit(
        x,
        y,
        batch_size=m.BATCH,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
        validation_batch_size=m.BATCH,
    ).history
    values = results[strategy]["layers"]
    assert steps == 3
    names = {"seen", "largest", "in_training", "loss"}
    assert names | {f"val_{n}" for n in names} == set(fitted)
    for name, (value,) in fitted.items():
        close(values[name], value)


def error(y, y_pred):
    return keras.ops.mean(abs(y - y_pred), axis=-1)


def with_layer(layer):
    return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])


class Asking(m.Measuring):
    def call(self, x):
        return x * self.seen.result()


class Looping(m.Measuring):
    def call(self, x):
        def body(i, total):
            self.seen.update_state(total)
            return i + 1, total

        return keras.ops.while_loop(lambda i, t: i < 2, body, (0, x))[1]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Asking, "'measuring' uses the result of its metric 'seen'"),
        (Looping, "'measuring' updates its metric 'seen' inside a loop"),
    ],
)
def test_what_a_layer_cannot_have_of_a_metric(layer, message):
    trainer = make_trainer(lambda: with_layer(layer(name="measuring")))
    with pytest.raises(UserError, match=message):
        trainer.train(1)


class Unordered(Default):
    """A strategy whose workers take batches as they come."""

    options = dataclasses.replace(Default.options, carries_states=False)


def test_a_strategy_without_an_order_refuses_what_needs_one():
    def make(metric):
        return make_trainer(
            lambda: with_layer(keras.layers.Dense(3)),
            metrics=[metric],
            strategy=Unordered(),
        )

    with pytest.raises(UserError, match=r"'largest' \(RunningMax\) does not"):
        make(lambda: m.RunningMax(name="largest")).train(1)
    make(lambda: keras.metrics.MeanMetricWrapper(error)).train(1)


def test_a_state_that_is_under_way_goes_on(tmp_path):
    """An interrupted interval ends with the value of an unbroken one."""

    def make():
        factories = [m.RunningMax, m.Decaying, keras.metrics.AUC, m.Several]
        return make_trainer(
            lambda: with_layer(keras.layers.Dense(3)),
            metrics=factories,
        )

    def train(steps, directory):
        return make().train(
            steps,
            model_dir=str(directory),
            callbacks=[Checkpoint()],
            log_every=10,
        )

    whole = train(10, tmp_path / "whole")
    train(4, tmp_path / "parts")
    # A second AUC of one process is another "auc" to Keras.
    parts = train(10, tmp_path / "parts")
    # Sums of losses depend in the last bit on where a graph call ends.
    assert parts.pop("loss") == pytest.approx(whole.pop("loss"), rel=1e-6)
    assert parts == whole
    assert {"running_max", "decaying", "auc", "total", "first"} <= set(whole)


def test_names_do_not_depend_on_what_was_made_before():
    first, second = (
        make_trainer(
            lambda: with_layer(keras.layers.Dense(3)),
            metrics=[keras.metrics.AUC, keras.metrics.AUC],
        ).train(1)
        for _ in range(2)
    )
    assert set(first) == set(second) == {"loss", "auc", "auc_1"}


def test_names_of_metrics_that_fit_takes():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    y = x[:, :1]

    given = ["mae", "accuracy", error, keras.metrics.mean_squared_error]
    model = with_layer(keras.layers.Dense(3))
    model.compile(loss="mse", metrics=list(given))
    wanted = model.evaluate(x, y, batch_size=8, return_dict=True, verbose=0)
    trainer = make_trainer(
        lambda: with_layer(keras.layers.Dense(3)), metrics=given
    )
    trainer.model.set_weights(model.get_weights())
    found = trainer.evaluate()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


class Forgetful(Trainer):
    """Takes a step of its own that measures nothing."""

    def train_step(self, batch):
        x, y = batch
        error = self.forward(x, training=True) - y
        return {"loss": keras.ops.mean(error**2)}


class Blind(Forgetful):
    """Measures nothing in evaluations, either."""

    def eval_step(self, batch):
        x, y = batch
        return {
            "loss": keras.ops.mean((self.forward(x, training=False) - y) ** 2)
        }


@pytest.mark.parametrize(
    ("kind", "measured"),
    [(Forgetful, ("mae", "running_max")), long(Blind, ())],
)
def test_what_a_step_leaves_out_is_not_logged(kind, measured, caplog):
    trainer = make_trainer(
        linear,
        kind=kind,
        metrics=["mae", m.RunningMax],
    )
    logs = trainer.train_and_evaluate(2, log_every=1)
    # The second one does not add up; its state was never updated.
    names = ("loss", *measured)
    assert logs.keys() == {"loss", *(f"val_{n}" for n in names)}
    told = [line for line in caplog.messages if "measures the metrics" in line]
    if measured:
        # One for evaluations only is what an experiment may want.
        assert not told
    else:
        assert len(told) == 1
        assert "'mae', 'running_max'" in told[0]


class Own(Trainer):
    """Takes a step of its own, and shows its metrics `seen` of the outputs."""

    seen = staticmethod(lambda y_pred: y_pred)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self.forward(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                y, y_pred, from_logits=True
            )
            loss = average(tf.reduce_sum(losses), len(losses))
        weights = self.model.trainable_variables
        self.apply_gradients(self.gradients(tape, loss, weights), weights)
        return {"loss": loss} | self.metric_increments(y, self.seen(y_pred))


class OfOneColumn(Own):
    """Shows them another kind of output than the model's."""

    seen = staticmethod(lambda y_pred: y_pred[:, :1])


CLASSES = np.arange(64) % 3


def with_classes(kind, model=lambda: classifier(), **options):
    return make_trainer(
        model,
        kind=kind,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=lambda split: (ARRAYS[0], CLASSES),
        metrics=["accuracy"],
        **options,
    )


def classifier():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])


def test_accuracy_is_that_of_outputs_and_targets_with_an_own_step_too():
    trainer = with_classes(Own)
    logs = trainer.train_and_evaluate(8)
    model = trainer._built.single_device_model()
    guessed = np.argmax(model.predict(ARRAYS[0], verbose=0), axis=1)
    assert logs["val_accuracy"] == pytest.approx(np.mean(guessed == CLASSES))
    assert 0 < logs["accuracy"] <= 1


@pytest.mark.long
def test_an_accuracy_that_is_not_known_is_a_sentence():
    with pytest.raises(UserError, match="means SparseCategoricalAccuracy for"):
        with_classes(OfOneColumn).train(1)

    def two_outputs():
        inputs = keras.Input((3,))
        a, b = keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")
        return keras.Model(inputs, {"a": a(inputs), "b": b(inputs)})

    with pytest.raises(UserError, match="it is not known which. Name"):
        with_classes(Own, two_outputs).train(1)
