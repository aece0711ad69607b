"""A checkpoint with right checksums and other content is passed over.

What it says of callbacks is checked, too, before it is believed.
"""

import json
import math
import shutil

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import (
    linear,
    lines,
    make_trainer,
    read_lines,
    saved_steps,
)
from tests.json_values import JSON
from tests.sets import one_in, ordinary
from trainer import Callback, UserError
from trainer.checkpoint import contents
from trainer.loop.callback_list import CallbackList
from trainer.plugin_api import schema, storage
from trainer_plugins import Checkpoint, EarlyStopping, JsonLines


def train(model_dir, steps, *more):
    trainer = make_trainer(linear)
    trainer.train(
        steps,
        model_dir=str(model_dir),
        callbacks=[
            *more,
            EarlyStopping(monitor="loss", patience=100),
            keras.callbacks.EarlyStopping(
                "loss", patience=100, restore_best_weights=True
            ),
            keras.callbacks.ReduceLROnPlateau("loss"),
            keras.callbacks.CSVLogger(f"{model_dir}.csv", append=True),
            JsonLines(),
            Checkpoint(every=2),
        ],
        log_every=2,
        steps_per_loop=2,
    )
    return trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("saved") / "run"
    train(model_dir, 10)
    return model_dir, storage.load_newest(str(model_dir / "checkpoints"))


def sign(path):
    """Writes the manifest that fits what is there."""
    manifest = {
        name: storage._fingerprint(str(path / name)) for name in storage._FILES
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


def rewrite(path, change):
    state = json.loads((path / "state.json").read_text())
    changed = change(state)
    (path / "state.json").write_text(
        json.dumps(state if changed is None else changed)
    )
    sign(path)


def set_to(*keys, value):
    def change(state):
        inner = state
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


def without(*keys):
    def change(state):
        inner = state
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]

    return change


HUGE = 10**400
VARIANTS = {
    "another step": set_to("step", value=8),
    "no step": without("step"),
    "a truth value": set_to("step", value=True),
    "a huge step": set_to("step", value=HUGE),
    "no format": without("format"),
    "a list": lambda state: [state],
    "no variables": without("variables"),
    "no loop": without("loop"),
    "a group that is null": set_to("variables", "model", value=None),
    "a negative shape": set_to("variables", "model", 0, "shape", value=[-1]),
    "another shape": set_to("variables", "model", 0, "shape", value=[4, 1]),
    "one variable more": lambda state: state["variables"]["model"].append(
        {"path": "x", "shape": [1]}
    ),
    "unfired_from": set_to("loop", "unfired_from", value=11),
    "stopped": set_to("loop", "stopped", value="yes"),
    "elapsed": set_to("times", "elapsed", "log", value=math.nan),
    "logs": set_to("logs", value={"loss": "small"}),
    "a large count": set_to("totals", "epoch", "loss", value=10**12),
    "a list of callbacks": set_to("callbacks", value=[]),
    "a callback that is a list": set_to("callbacks", "EarlyStopping", value=[]),
    # These need the loop and the callbacks.
    "a small count": set_to("totals", "epoch", "_examples", value=1),
    "other totals": set_to("totals", "other", value={}),
    "a callback": set_to("callbacks", "EarlyStopping", "wait", value=-1),
}


OFTEN = [
    *("no step", "unfired_from", "other totals", "a callback"),
    *("a list of callbacks", "a callback that is a list"),
]


@pytest.mark.parametrize("kind", ordinary(VARIANTS, OFTEN))
def test_a_run_passes_it_over(saved, tmp_path, caplog, kind):
    model_dir, _ = saved
    shutil.copytree(model_dir, tmp_path / "run")
    directory = tmp_path / "run" / "checkpoints"
    rewrite(directory / "step_00000010", VARIANTS[kind])
    whole = tmp_path / "whole"
    shutil.copytree(model_dir, whole)
    shutil.rmtree(whole / "checkpoints" / "step_00000010")
    trainer, expected = train(tmp_path / "run", 12), train(whole, 12)
    assert trainer.step == 12
    assert "Skipping" in caplog.text
    for one, other in zip(
        trainer.model.get_weights(), expected.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def crafted(saved, tmp_path, change, callbacks=None):
    """A run whose step 10 has other arrays, or other states of callbacks."""
    model_dir, snapshot = saved
    directory = tmp_path / "run" / "checkpoints"
    shutil.copytree(model_dir, tmp_path / "run")
    shutil.rmtree(directory / "step_00000010")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    host = json.loads(json.dumps(snapshot.host))
    host["callbacks"] |= callbacks or {}
    arrays = dict(snapshot.arrays)
    change(arrays)
    storage.save(str(directory), storage.Snapshot(10, arrays, host))
    return tmp_path / "run"


def replaced(name, array):
    return lambda arrays: arrays.update({name: array})


def cut_totals(arrays):
    for name in arrays:
        if name.startswith("totals/epoch/loss"):
            arrays[name] = np.zeros((5, 2), "float32")


CHANGES = {
    "flat": replaced("model/0000", np.zeros(3, "float32")),
    "text": replaced("model/0000", np.array([["a"], ["b"], ["c"]])),
    "missing": lambda arrays: arrays.pop("model/0000"),
    "totals": cut_totals,
}


@pytest.mark.parametrize("kind", one_in(2, CHANGES))
def test_arrays_that_do_not_fit(saved, tmp_path, caplog, kind):
    run = crafted(saved, tmp_path, CHANGES[kind])
    assert train(run, 12).step == 12
    assert "Skipping" in caplog.text


def of_callbacks(saved, tmp_path, **states):
    return crafted(saved, tmp_path, lambda arrays: None, states)


def test_code_that_waits_for_being_written_is_not(saved, tmp_path, caplog):
    code = "import os; os.system('touch harm')\n"
    run = of_callbacks(saved, tmp_path, JsonLines={"waiting": [code]})
    assert train(run, 12).step == 12
    assert "Skipping the checkpoint of step 10: JsonLines" in caplog.text
    assert "Continuing from step 8" in caplog.text
    assert [line["step"] for line in lines(run)] == [10, 12]
    assert "import" not in (run / "metrics.jsonl").read_text()


def test_objects_of_keras_callbacks_stay(saved, tmp_path):
    state = {"writer": 7, "csv_file": 7}
    run = of_callbacks(saved, tmp_path, CSVLogger=state)
    assert train(run, 16).step == 16


class Picky(Callback):
    """Somebody else's, which checks nothing."""

    seen = 1

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"] + 1


def test_a_callback_that_fails_in_its_own_way(saved, tmp_path, caplog):
    entry = {"step": 10, "split": "train", "values": {"of": 6}}
    run = of_callbacks(
        saved,
        tmp_path,
        Picky={"seen": "text"},
        JsonLines={"waiting": [entry | {"final": False}]},
    )
    train(run, 12, Picky())
    assert "Picky rejects its saved state (TypeError" in caplog.text
    # Nothing of the checkpoint that was passed over is left.
    assert "of" not in read_lines(run / "metrics.jsonl")[0]


def test_where_none_fits_the_run_is_refused(tmp_path, monkeypatch):
    train(tmp_path / "run", 4, Picky())
    monkeypatch.setattr(Picky, "load_state", lambda self, s: s["other"])
    with pytest.raises(UserError, match=r"No checkpoint in .* fits") as error:
        train(tmp_path / "run", 8, Picky())
    assert "step 4" in str(error.value)
    assert "KeyError: 'other'" in str(error.value)


def test_where_none_is_valid_the_run_is_refused(saved, tmp_path):
    """Their files are whole, but what they say cannot be."""
    shutil.copytree(saved[0], tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        rewrite(path, set_to("loop", "unfired_from", value=11))
    with pytest.raises(UserError, match="None of the checkpoints in"):
        train(tmp_path / "run", 12)
    assert saved_steps(tmp_path / "run")[-1] == 10


def test_another_format_is_refused(saved, tmp_path):
    """To pass it over would lose what that version has done."""
    model_dir, _ = saved
    shutil.copytree(model_dir, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step_00000010"
    rewrite(path, set_to("format", value=storage.FORMAT + 1))
    with pytest.raises(UserError, match="different version of the trainer"):
        train(tmp_path / "run", 12)
    assert saved_steps(tmp_path / "run")[-1] == 10


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*path, key))


WRONG = JSON | st.sampled_from([HUGE, -1, math.nan, math.inf, True, 1e308])


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), value=WRONG, removes=st.booleans())
def test_any_change_fits_or_is_a_misfit(saved, data, value, removes):
    """Whatever stands anywhere: never another error than the one."""
    _, snapshot = saved
    host = json.loads(json.dumps(snapshot.host))
    path = data.draw(st.sampled_from(list(places(host))[1:]))
    inner = host
    for key in path[:-1]:
        inner = inner[key]
    if removes:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    changed = storage.Snapshot(10, snapshot.arrays, host)
    said = ""
    try:
        contents.check(changed)
        fresh = CallbackList([EarlyStopping("loss"), Checkpoint()], None)
        fresh.load_states(
            {
                key: state
                for key, state in host.get("callbacks", {}).items()
                if key in ("EarlyStopping", "Checkpoint")
            }
        )
    except schema.Misfit as error:
        said = str(error)
    assert len(said) < 400
