"""Every metric gives what Keras' own object gives, fed batch by batch."""

import dataclasses

import keras
import numpy as np
import pytest

from tests.exactness import metric_models as m
from tests.helpers import linear, make_trainer
from tests.sets import long
from tests.trainer.step.reductions.exact import found_in, pairs, run_cases
from trainer import ArrayExamples, Trainer, UserError, additive
from trainer_plugins import Checkpoint, Default

MODULE = "tests.trainer.step.metrics.test_metric_set"


def make(strategy, model, arrays, metrics, **options):
    return make_trainer(
        **{
            "model": model,
            "loss": dict.fromkeys(m.FAMILIES, m.nothing)
            if model is m.every_family
            else m.nothing,
            "optimizer": lambda: keras.optimizers.SGD(0.0),
            "metrics": metrics,
            "data": lambda split: ArrayExamples(arrays, shuffle=False),
            "batch_size": m.BATCH,
            "strategy": strategy,
            **options,
        }
    )


def evaluated(strategy, arrays, factories):
    metrics = [lambda n=n, f=f: f(name=n) for n, f in factories.items()]
    model = m.identity(arrays[0].shape[1])
    return make(strategy, model, arrays, metrics).evaluate()


def custom(strategy):
    return evaluated(strategy, m.data("regression"), m.CUSTOM | m.KEEPING)


def unweighted(strategy):
    return evaluated(strategy, m.data("regression")[:2], m.UNWEIGHTED)


def of_layers(strategy):
    arrays = m.data("regression")[:2]
    return make(strategy, m.measuring_model, arrays, []).evaluate()


def of_keras(strategy):
    data = {name: m.data(name) for name in m.FAMILIES}
    arrays = (
        {name: data[name][0] for name in data},
        {name: data[name][1] for name in data},
        data["binary"][2],
    )
    metrics = {name: m.metrics_of(name) for name in data}
    return make(strategy, m.every_family, arrays, metrics).evaluate()


EVERYWHERE = ("default", "mirrored_2", "mirrored_3", "central_storage_2")
CASES = {
    custom: EVERYWHERE,
    unweighted: ("default", "mirrored_3"),
    of_layers: ("mirrored_3",),
    of_keras: ("default", "mirrored_3"),
}
LONG = (
    *((one, "default") for one in ("custom", "unweighted", "of_keras")),
    ("custom", "mirrored_2"),
    ("custom", "central_storage_2"),
)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, root):
    directory = tmp_path_factory.mktemp("metrics")
    return run_cases(MODULE, request, directory, root, LONG)


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
@pytest.mark.parametrize("strategy", ["mirrored_3", long("default")])
def test_metrics_of_keras(results, name, strategy):
    family = m.family(name)
    values = found_in(results, "of_keras", strategy)
    for make in m.made(name):
        wanted = m.expected(make, m.data(family), steps=3)
        close(logged(values, f"{family}_{make().name}"), wanted)


def found_of(values, name):
    if name == "several":
        return [values[key] for key in ("total", "first")]
    return logged(values, name)


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        pair
        for pair in pairs(CASES, LONG)
        if getattr(pair, "values", pair)[0] in ("custom", "unweighted")
    ],
)
def test_evaluations_are_exact_for_what_does_not_add_up(
    results, case, strategy
):
    factories, arrays = m.CUSTOM | m.KEEPING, m.data("regression")
    if case == "unweighted":
        factories, arrays = m.UNWEIGHTED, arrays[:2]
    values = found_in(results, case, strategy)
    for name, factory in factories.items():
        close(found_of(values, name), m.expected(factory, arrays, 3))


def of_regression(factories, arrays, *, model=None, **options):
    metrics = [lambda n=n, f=f: f(name=n) for n, f in factories.items()]
    options = {"metrics": metrics, **options}
    return make("default", model or m.identity(4), arrays, **options)


def test_on_one_whole_batch_they_go_from_step_to_step():
    arrays = m.data("regression")
    steps = m.STEPS - 1
    for factories, given in ((m.CUSTOM, arrays), (m.UNWEIGHTED, arrays[:2])):
        trainer = of_regression(factories, given)
        values = trainer.train(steps, steps_per_loop=2, log_every=steps)
        for name, make in factories.items():
            close(found_of(values, name), m.expected(make, given, steps))


def test_training_and_evaluation_may_update_them_by_other_things():
    """Only the data of the evaluation has weights."""
    arrays, steps = m.data("regression"), m.STEPS - 1
    trainer = of_regression(
        {"decaying": m.CUSTOM["decaying"]},
        arrays,
        data=lambda split: ArrayExamples(
            arrays[:2] if split == "train" else arrays, shuffle=False
        ),
    )
    values = trainer.train_and_evaluate(steps, eval_every=1, log_every=steps)
    for name, given, count in (
        ("decaying", arrays[:2], steps),
        ("val_decaying", arrays, 3),
    ):
        close(values[name], m.expected(m.CUSTOM["decaying"], given, count)[0])


class SumOfErrors(m.Custom):
    """A sum, of a class that does not say so."""

    def update_state(self, y, y_pred, sample_weight=None):
        self.state.assign_add(keras.ops.sum(keras.ops.abs(y_pred - y)))


class SaysSo(SumOfErrors):
    additive = True


class SaysNot(SumOfErrors):
    additive = False


CUT = "does not add up over the parts .* trainer.additive"


@pytest.mark.parametrize(
    ("metric", "is_sum"),
    [
        (SumOfErrors, True),
        (SaysSo, True),
        (additive(SumOfErrors), True),
        # It is believed.
        (additive(m.RunningMax), True),
        (SaysNot, False),
        (m.RunningMax, False),
        (m.MeanOfBatches, False),
        # Of outputs of shape [batch, 1] it would be one.
        (m.UNWEIGHTED["over_the_batch"], False),
    ],
)
def test_training_on_a_batch_that_is_cut_takes_sums_alone(metric, is_sum):
    arrays = m.data("regression")[:2]
    trainer = of_regression({}, arrays, metrics=[metric], accumulation_steps=2)
    if is_sum:
        assert len(trainer.train(1, log_every=1)) == 2
        return
    with pytest.raises(UserError, match=CUT):
        trainer.train(1)
    # As before, in evaluations.
    assert len(trainer.evaluate()) == 2


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("strategy", ["mirrored_3", "here"])
def test_metrics_in_layers_are_logged_as_fit_logs_them(results, strategy):
    x, y, _ = m.data("regression")
    model = m.measuring_model()
    model.compile(loss=m.nothing, optimizer=keras.optimizers.SGD(0.0))
    fitted = model.fit(
        x,
        y,
        batch_size=m.BATCH,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
        validation_batch_size=m.BATCH,
    ).history
    names = {"seen", "largest", "in_training", "loss"}
    assert names | {f"val_{n}" for n in names} == set(fitted)
    if strategy == "here":
        trainer = of_regression({}, (x, y), model=m.measuring_model)
        values = trainer.train_and_evaluate(3, log_every=3)
    else:
        found = found_in(results, "of_layers", strategy)
        values = {f"val_{name}": value for name, value in found.items()}
    for name in values.keys() & fitted.keys():
        close(values[name], fitted[name][0])
    assert len(values) == (8 if strategy == "here" else 4)


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
