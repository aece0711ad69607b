"""A run directory may have any name that the file system allows."""

import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers import linear, lines, make_trainer, saved_steps
from tests.sets import ordinary
from trainer import UserError
from trainer.checkpoint import storage
from trainer.checkpoint.init_from import initialize_from
from trainer.runtime import fingerprints
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
NAMES = st.text(
    st.sampled_from("[]\\*?{}!^-a0.,:= '\"$%\n\té日🙂~@#") | st.characters(),
    min_size=1,
    max_size=40,
)


def is_a_name(name):
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return (
        name not in (".", "..")
        and not {"/", "\0"} & set(name)
        and len(encoded) <= 255
    )


def nasty(**examples):
    def add(test):
        for name in NASTY:
            test = example(name=name)(test)
        return test

    return add


@pytest.mark.long
@nasty()
@settings(max_examples=60, deadline=None)
@given(name=NAMES.filter(is_a_name))
def test_a_checkpoint_is_read_wherever_it_was_written(name):
    with tempfile.TemporaryDirectory() as folder:
        directory = os.path.join(folder, name, "checkpoints")
        for step in (1, 2, 2):
            arrays = {"a": np.full((3,), step, "float32")}
            storage.save(
                directory, storage.Snapshot(step, arrays, {"name": name})
            )
        found = storage.load_newest(directory)
        assert (found.step, found.host) == (2, {"name": name})
        assert found.arrays["a"].tolist() == [2.0] * 3
        storage.remove(storage.listing(directory)[0])
        assert len(os.listdir(directory)) == 1


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
    assert any((model_dir / "tensorboard" / "train").iterdir())
    saved = keras.models.load_model(model_dir / "export" / "model.keras")
    np.testing.assert_array_equal(
        saved.get_weights()[0], trainer.model.get_weights()[0]
    )
    assert (model_dir / "export" / "saved_model" / "saved_model.pb").exists()
    # Nothing went anywhere else.
    assert os.listdir(tmp_path) == [name.split("/")[0]]
    other = make_trainer(linear)
    initialize_from(other._built.parts, str(model_dir))
    np.testing.assert_array_equal(
        other.model.get_weights()[0], trainer.model.get_weights()[0]
    )


def test_elsewhere_than_on_local_disks():
    """TensorFlow's `ram://` renames no directories, so it is written there."""
    path = "ram://lr=[0.1]/checkpoints/step_00000003"
    tf.io.gfile.makedirs(path)
    storage._write(path, storage.Snapshot(3, {"a": np.ones(2)}, {}))
    assert storage.load(path).step == 3


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a\0b", "NUL"),
        (os.fsdecode(b"a\xff"), "not valid UTF-8"),
        ("n" * 256, "too long"),
        ("é" * 128, "too long"),
        ("/".join(["n" * 200] * 20), "too long"),
    ],
)
def test_what_cannot_be_opened_is_refused(tmp_path, path, why):
    with pytest.raises(UserError, match=why):
        train(tmp_path / path, 2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["lr=[0.1],\\b", "-new\nline '[*] \\ ?"],
)
@pytest.mark.long
def test_through_the_command_line(root, tmp_path, name):
    for steps in (20, 30):
        done = subprocess.run(
            [sys.executable, "-m", "trainer"]
            + [f"--gin_file={root}/experiments/digits.gin"]
            + [f"--model_dir={name}", f"--train_steps={steps}"]
            + ["--gin.Checkpoint.every=10"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "Passing over" not in done.stderr
    assert saved_steps(tmp_path / name) == [10, 20, 30]
    assert os.listdir(tmp_path) == [name]


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


def test_sources_are_found_in_a_folder_with_any_name(tmp_path):
    folder = tmp_path / "[checkout]"
    folder.mkdir()
    (folder / "a.py").write_text("")
    assert fingerprints._sources(str(folder)) == [str(folder / "a.py")]
