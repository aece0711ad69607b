"""A new run takes over weights: what fits, what was asked for, no more."""

import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest

from tests import helpers
from tests.helpers import linear
from tests.helpers import make_trainer as make
from trainer import ArrayExamples, UserError
from trainer.checkpoint.init_from import initialize_from
from trainer_plugins import Checkpoint


def functional(units=4, head="head"):
    """An encoder of two layers, and a head."""
    inputs = keras.Input((3,))
    inner = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(units, name="first"),
            keras.layers.BatchNormalization(name="norm"),
        ],
        name="encoder",
    )
    outputs = keras.layers.Dense(1, name=head)(inner(inputs))
    return keras.Model(inputs, outputs)


def denses(*names, units=3):
    layers = [keras.layers.Dense(units, name=name) for name in names]
    return keras.Sequential([keras.Input((3,)), *layers])


def init(trainer, path, only=None):
    return initialize_from(trainer._built.parts, str(path), only=only)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained trainer and its run directory, with both Keras files."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer = make(functional, seed=1)
    trainer.train(6, model_dir=str(folder), callbacks=[Checkpoint()])
    model = trainer._built.single_device_model()
    # A file of a compiled model holds the optimizer as well.
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    return trainer, folder


SOURCES = (
    "",
    "checkpoints",
    "checkpoints/step_00000006",
    "model.keras",
    "model.weights.h5",
)


def values(trainer):
    return [
        keras.ops.convert_to_numpy(v).copy() for v in trainer.model.variables
    ]


@pytest.mark.parametrize("source", SOURCES)
def test_any_source(trained, source, caplog):
    """The same model, a part of it, and one of other shapes."""
    first, folder = trained
    theirs = values(first)
    second = make(functional, seed=2, ema_momentum=0.5)
    assert len(init(second, folder / source)) == 8
    for mine, there in zip(values(second), theirs, strict=True):
        assert np.array_equal(mine, there)
    assert second.step == 0
    # The average begins with what was loaded.
    for average, value in zip(
        second._built.parts.ema.variables,
        second.model.trainable_variables,
        strict=True,
    ):
        assert np.array_equal(average.numpy(), value.numpy())

    part = make(lambda: functional(head="other"), seed=2, loss="mae")
    before = values(part)
    loaded = init(part, folder / source, only="encoder/first/.*")
    assert loaded == ["encoder/first/kernel", "encoder/first/bias"]
    for i, value in enumerate(values(part)):
        assert np.array_equal(value, theirs[i] if i < 2 else before[i])

    wide = make(lambda: functional(units=5), seed=2)
    caplog.clear()
    assert init(wide, folder / source) == ["head/bias"]
    assert "encoder/first/kernel [3, 5], there [3, 4]" in caplog.text
    other = make(lambda: functional(units=5, head="haed"), seed=2)
    before = values(other)
    with pytest.raises(UserError, match="no variable there has a path and"):
        init(other, folder / source)
    for mine, there in zip(values(other), before, strict=True):
        assert np.array_equal(mine, there)


def test_names_that_keras_counted_up(tmp_path):
    first = make(linear, seed=1)
    first.train(3, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    second = make(linear, seed=2)
    assert second.model.layers[0].name != first.model.layers[0].name
    assert len(init(second, tmp_path)) == 2
    assert np.array_equal(values(second)[0], values(first)[0])


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ("a b", "b a", (1, 0)),
        ("decoder encoder old", "encoder decoder new", (1, 0, None)),
        ("block_1 block_2 block_3", "block_0 block_1 block_2", (None, 0, 1)),
        # Counted by Keras itself.
        ("dense dense_1 dense_2", "dense_1 dense_2 dense_3", (0, 1, 2)),
    ],
)
def test_layers_are_matched_by_name(tmp_path, there, here, expected):
    first = make(lambda: denses(*there.split()), seed=1)
    file = tmp_path / "a.weights.h5"
    first._built.single_device_model().save_weights(file)
    second = make(lambda: denses(*here.split()), seed=2)
    new = values(second)
    init(second, file)
    for i, place in enumerate(expected):
        wanted = new[2 * i] if place is None else values(first)[2 * place]
        np.testing.assert_array_equal(values(second)[2 * i], wanted)


def test_a_model_that_is_a_layer_of_another(tmp_path):
    """The model's own name is no part of a path, a layer's is."""

    class Pair(keras.Model):
        def __init__(self):
            super().__init__(name="pair")
            self.encoder = keras.layers.Dense(4, name="encoder")
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x):
            return self.head(self.encoder(x))

    first = make(Pair, seed=1)
    first.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    other = make(lambda: denses("encoder", "classes", units=4), seed=2)
    assert init(other, tmp_path) == ["encoder/kernel", "encoder/bias"]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ("encodr/.*", "does not match the whole path of any .* It has"),
        ("encoder", "does not match the whole path"),
        ("(", "is not a regular expression"),
    ],
)
def test_a_selection_of_nothing_is_refused(trained, only, words):
    with pytest.raises(UserError, match=words):
        init(make(functional), trained[1], only=only)


def test_an_optimizer_begins_on_the_weights_that_were_read(trained):
    """ScheduleFreeAdamW keeps a copy of the weights it begins with."""
    _, folder = trained
    found = make(
        functional,
        seed=2,
        optimizer=lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
        data=lambda split: ArrayExamples(helpers.ARRAYS, shuffle=False),
    )
    init(found, folder / "model.weights.h5")
    found._built.restart_optimizers()
    model = found._built.single_device_model()
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    x, y = helpers.ARRAYS
    for start in (0, 8):
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    found.train(2)
    for got, want in zip(values(found), model.variables, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# Files that are damaged, or made up to do harm.


def body():
    return denses("body", units=4)


def refused(path, why):
    with pytest.raises(UserError, match=why):
        init(make(body), path)


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_damaged_file_is_a_sentence(trained, tmp_path, suffix):
    path, why = tmp_path / f"a{suffix}", "cannot be read as a Keras file"
    content = (trained[1] / f"model{suffix}").read_bytes()
    for damaged in (content[: len(content) // 2], pickle.dumps(1)):
        path.write_bytes(damaged)
        refused(path, why)
    # A file without end, which takes no room on the disk.
    os.truncate(path, 1 << 43)
    refused(path, why)
    path.unlink()
    os.mkfifo(path)
    refused(path, "is not a file")


def made_up(tmp_path, fill, name="a.weights.h5"):
    path = tmp_path / name
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/body/vars")
        group.attrs["name"] = "body"
        fill(group)
    return path


DATASETS = {
    "400 TB": lambda g: g.create_dataset("0", (10**7, 10**7), "float32"),
    "more than any number": lambda g: g.create_dataset(
        "0", (2**62, 3, 4), "float32", chunks=(1, 3, 4)
    ),
    "strings": lambda g: g.create_dataset("0", (3, 4), h5py.string_dtype()),
    "empty": lambda g: g.create_dataset("0", data=h5py.Empty("float32")),
    "complex": lambda g: g.create_dataset("0", (3, 4), "complex64"),
    "a record": lambda g: g.create_dataset("0", (3, 4), "f4,i4"),
    "lists": lambda g: g.create_dataset(
        "0", (3, 4), h5py.vlen_dtype(np.dtype("float32"))
    ),
    "references": lambda g: g.create_dataset("0", (3, 4), h5py.ref_dtype),
    "opaque": lambda g: g.create_dataset("0", (3, 4), "V8"),
    "a scalar": lambda g: g.create_dataset("0", (), "float32"),
    "a group": lambda g: g.create_group("0"),
    "a link in a circle": lambda g: g.__setitem__("0", h5py.SoftLink("/")),
    "nothing": lambda g: None,
}


@pytest.mark.parametrize("kind", DATASETS)
def test_what_is_no_array_of_the_model_is_not_read(tmp_path, kind):
    def beside(group):
        DATASETS[kind](group)
        group["1"] = np.arange(4, dtype="float32")

    refused(made_up(tmp_path, DATASETS[kind]), "no variable there has a path")
    trainer = make(body)
    assert init(trainer, made_up(tmp_path, beside)) == ["body/bias"]
    assert trainer.model.get_weights()[1].tolist() == [0, 1, 2, 3]


def test_a_file_reads_no_other_file(tmp_path):
    """HDF5 has datasets that lie elsewhere, and links."""
    (tmp_path / "secret").write_bytes(bytes(48))
    path = made_up(
        tmp_path,
        lambda group: group.create_dataset(
            "0", (3, 4), "float32", external=[(tmp_path / "secret", 0, 48)]
        ),
    )
    refused(path, "refers to another file")
    os.mkfifo(tmp_path / "other.h5")
    other = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")

    def fill(group):
        group["0"] = np.ones((3, 4), "float32")
        group["1"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/bias")
        group.file["layers"]["vars"] = other

    assert init(make(body), made_up(tmp_path, fill)) == ["body/kernel"]


def test_an_archive_is_not_inflated(tmp_path):
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 20))
    refused(path, "is compressed")


def test_no_class_of_the_file_is_needed(tmp_path):
    """Nor is any made: its code would run."""

    class Unknown(keras.layers.Dense):
        pass

    inputs = keras.Input((3,))
    outputs = keras.layers.Lambda(lambda x: x * 2)(
        Unknown(4, name="body")(inputs)
    )
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "custom.keras")
    trainer = make(body, seed=3)
    loaded = init(trainer, tmp_path / "custom.keras")
    assert loaded == ["body/kernel", "body/bias"]
    assert np.array_equal(values(trainer)[0], model.variables[0].numpy())
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("config.json", "{}")
    (tmp_path / "empty.keras").write_bytes(empty.getvalue())
    refused(tmp_path / "empty.keras", "cannot be read as a Keras file")


# Through the command line.


@pytest.mark.long
def test_the_command_line(root, tmp_path):
    def start(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "trainer"]
            + [f"--gin_file={root}/experiments/digits.gin"]
            + ["--gin.run.callbacks=[@Checkpoint()]", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert start("--model_dir=a", "--train_steps=3").returncode == 0
    only = "--gin.run.init_only='.*kernel'"
    done = start("--model_dir=b", only, "--train_steps=2")
    assert done.returncode == 2
    assert "run.init_only = '.*kernel' needs a run to load" in done.stderr
    assert not (tmp_path / "b").exists()
    for steps in (2, 4):
        done = start(
            *("--model_dir=b", "--init_from=a", only),
            *(f"--train_steps={steps}", "--verbosity=0"),
        )
        assert done.returncode == 0, done.stderr[-4000:]
        # A run that goes on is not initialized again.
        said = "model variables from a/checkpoints, step 3" in done.stderr
        assert said == (steps == 2)
    run = json.loads(pathlib.Path(tmp_path, "b", "run.json").read_text())
    assert run["exit_reason"] == "done"
