"""A run directory may have any name that the file system allows."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.helpers import linear, lines, make_trainer, saved_steps
from tests.sets import ordinary
from trainer import UserError
from trainer_plugins import Checkpoint, Export, JsonLines, TensorBoard

NASTY = [
    "lr=[0.1]",
    "[a-z]",
    "[",
    "]x[",
    "a\\b",
    "\\",
    "*",
    "a*b?",
    "{a,b}",
    "[[]",
    " lead and trail ",
    "-dash",
    "--model_dir=x",
    "new\nline",
    "tab\tcr\r",
    "quote'\"`$HOME",
    "%s %d {0}",
    "ünï-日本語-🙂",
    "a://b c",
    "step_00000001",
    "#;&|",
    "n" * 255,
]


def train(model_dir, steps):
    trainer = make_trainer(linear)
    trainer.train(
        steps,
        model_dir=str(model_dir),
        callbacks=[JsonLines(), TensorBoard(), Export(), Checkpoint(every=2)],
        log_every=2,
    )
    return trainer


@pytest.mark.parametrize(
    "name",
    ordinary(NASTY, ["lr=[0.1]", "["]),
)
def test_a_run_goes_on(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    model_dir = pathlib.Path(tmp_path, name)
    train(model_dir, 4)
    trainer = train(model_dir, 8)
    assert trainer.step == 8
    assert saved_steps(model_dir) == [4, 6, 8]
    assert [line["step"] for line in lines(model_dir)] == [2, 4, 6, 8]
    assert any((model_dir / "train").iterdir())
    saved = keras.models.load_model(model_dir / "export" / "model.keras")
    np.testing.assert_array_equal(
        saved.get_weights()[0], trainer.model.get_weights()[0]
    )
    assert (model_dir / "export" / "saved_model" / "saved_model.pb").exists()
    # Nothing went anywhere else.
    assert os.listdir(tmp_path) == [name.split("/")[0]]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a\0b", "NUL"),
        (os.fsdecode(b"a\xff"), "not valid UTF-8"),
        ("/", "root of the file system"),
        ("//", "root of the file system"),
        ("n" * 256, "too long"),
        ("é" * 128, "too long"),
        ("/".join(["n" * 200] * 20), "too long"),
    ],
)
def test_what_cannot_be_opened_is_refused(tmp_path, path, why):
    with pytest.raises(UserError, match=why):
        train(tmp_path / path, 2)
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_too_long_is_a_sentence(root, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "trainer"]
        + [f"--gin_file={root}/experiments/digits.gin"]
        + [f"--model_dir={'n' * 300}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: model_dir 'nnn")
    assert len(done.stderr.splitlines()) == 1
