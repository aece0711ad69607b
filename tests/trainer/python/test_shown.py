"""What `help`, completion, `repr` and a notebook show."""

import inspect
import pickle
import pydoc
import sys

import keras
import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import trainer
import trainer_plugins
from trainer import Callback, Guard, Trainer, UserError
from trainer.strategy.registry import load_plugins

X = np.ones((64, 4), "float32")
METHODS = ("fit", "train", "train_and_evaluate", "evaluate", "predict", "save")


@pytest.fixture(scope="module")
def trained():
    made = Trainer(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        loss="mse",
        metrics=["mae"],
        strategy=trainer_plugins.Mirrored(devices=["cpu:0"]),
    )
    made.fit(X, X[:, :1], epochs=2, verbose=0)
    made.fit(X, X[:, :1], validation_split=0.5, validation_freq=1, verbose=0)
    return made


@pytest.mark.parametrize(
    "target",
    [Trainer, Guard, *(getattr(Trainer, name) for name in METHODS)]
    + list(load_plugins().values()),
    ids=lambda one: one.__name__,
)
def test_signatures_have_plain_types_in_the_order_of_the_docstring(target):
    text = str(inspect.signature(target))
    for noise in (
        "Annotated",
        " at 0x",
        "lambda",
        "keras.src",
        "Predicate",
        "trainer.",
    ):
        assert noise not in text
    listed = pydoc.getdoc(target).replace("Options:", "").split("Args:")[-1]
    at = [
        listed.find(f"\n    {name}: ")
        for name in inspect.signature(target).parameters
        if name not in ("self", "args", "kwargs")
    ]
    assert -1 not in at
    assert at == sorted(at)


def test_what_one_needs_first_comes_first():
    assert list(inspect.signature(Trainer).parameters)[:7] == [
        *("model", "loss", "optimizer", "metrics", "data", "batch_size"),
        "strategy",
    ]
    assert "optimizer: str | Optimizer | Callable" in pydoc.render_doc(
        Trainer, renderer=pydoc.plaintext
    )


@pytest.mark.parametrize("module", [trainer, trainer_plugins])
def test_completion_offers_what_is_public_and_nothing_else(module):
    shell = InteractiveShell.instance(user_ns={"it": module})
    try:
        with provisionalcompleter():
            found = [one.text for one in shell.Completer.completions("it.", 3)]
    finally:
        InteractiveShell.clear_instance()
    assert sorted(name.removeprefix(".") for name in found) == module.__all__
    assert dir(module) == module.__all__
    for name in module.__all__:
        assert getattr(module, name).__name__.rpartition(".")[2] == name


def test_a_trainer_says_what_it_is(trained):
    assert repr(trained) == (
        f"Trainer(model={trained.model.name!r}, "
        "strategy=mirrored on 1 device, step=5)"
    )
    assert "<td>strategy</td><td>mirrored on" in trained._repr_html_()
    assert trained.strategy is trained.plugin.strategy

    def make_model():
        raise AssertionError("a repr builds nothing")

    made = Trainer(make_model, strategy=trainer_plugins.Mirrored())
    assert repr(made) == "Trainer(model=make_model, strategy=Mirrored())"


def test_a_callback_and_a_plugin_show_what_they_were_given():
    class Own(trainer_plugins.Checkpoint):
        def __init__(self, path):
            super().__init__(every=3)
            self.path = path

    class Plain(Callback):
        def __init__(self, path):
            super().__init__()

    assert repr(trainer_plugins.JsonLines()) == "JsonLines()"
    checkpoint = trainer_plugins.Checkpoint(every="5 epochs", keep_last=2)
    assert repr(checkpoint) == "Checkpoint(every='5 epochs', keep_last=2)"
    assert repr(Own("here")) == "Own(every=3)"
    assert repr(Plain("here")) == "Plain(...)"
    guard = Guard("roll_back", max_loss=3.0)
    assert repr(guard) == "Guard(action='roll_back', max_loss=3.0)"


def test_a_history_says_what_it_holds(trained):
    history = trained.history
    assert repr(history).startswith("History(epochs=3, loss=")
    assert " at 0x" not in repr(history)
    table = history._repr_html_()
    assert table.count("<tr>") == 4
    assert table.count("<tr><td>3</td>") == 1
    assert "<th>val_mae</th>" in table
    # The first epochs were not evaluated.
    assert table.count("<td></td>") == 4
    again = pickle.loads(pickle.dumps(history))
    assert again.history == history.history
    assert again._repr_html_() == table


def test_a_history_plots_a_value_beside_that_of_its_evaluation(
    trained, tmp_path
):
    pytest.importorskip("matplotlib").use("agg")
    panels = trained.history.plot()
    assert [one.get_title() for one in panels] == ["loss", "mae"]
    for one in panels:
        name = one.get_title()
        lines = {x.get_label(): x for x in one.get_lines()}
        assert lines.keys() == {name, f"val_{name}"}
        values = trained.history.history
        # Both calls have a first epoch.
        assert list(lines[name].get_xdata()) == [1, 2, 3]
        assert list(lines[name].get_ydata()) == values[name]
        assert list(lines[f"val_{name}"].get_ydata()) == values[f"val_{name}"]
    panels[0].figure.savefig(tmp_path / "curve.png")


def test_what_is_not_installed_is_one_sentence(trained, monkeypatch):
    # As a machine has it where neither is installed.
    monkeypatch.setattr(sys, "path", [])
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("matplotlib", "pandas"):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="needs matplotlib: pip install"):
        trained.history.plot()
    with pytest.raises(UserError, match="needs pandas: pip install pandas"):
        trained.history.frame()


def test_values_are_a_dict_and_a_table(trained):
    values = trained.evaluate(X, X[:, :1], verbose=0)
    assert values == dict(values)
    assert values._repr_html_().startswith("<table><tr><td>loss</td><td>")
