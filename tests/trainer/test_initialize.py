"""A new run takes over weights: what fits, what was asked for, no more."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest

from plugins.callbacks.checkpoint import Checkpoint
from tests.helpers import make_trainer as make
from trainer import UserError
from trainer.initialize import initialize_from


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


def sequential(head="head"):
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, name="body"),
            keras.layers.Dense(1, name=head),
        ]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained trainer and its run directory, with both Keras files."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    trainer = make(functional, seed=1)
    trainer.train(6, model_dir=str(folder), callbacks=[Checkpoint()])
    model = trainer.single_device_model()
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


def names(entries):
    return [entry["path"] for entry in entries]


ENCODER = [
    f"encoder/{name}"
    for name in (
        "first/kernel",
        "first/bias",
        "norm/gamma",
        "norm/beta",
        "norm/moving_mean",
        "norm/moving_variance",
    )
]


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_model_from_any_source(trained, source):
    first, folder = trained
    second = make(functional, seed=2, ema_momentum=0.5)
    report = initialize_from(second, str(folder / source))
    for mine, theirs in zip(values(second), values(first), strict=True):
        assert np.array_equal(mine, theirs)
    assert len(report.loaded) == 8
    assert not report.not_found
    assert not report.shape_differs
    assert not report.not_used
    assert second.step == 0
    assert second.optimizer.iterations == 0
    # The average begins with what was loaded.
    averages = second.parts.ema.variables
    for average, value in zip(
        averages, second.model.trainable_variables, strict=True
    ):
        assert np.array_equal(average.numpy(), value.numpy())


@pytest.mark.parametrize("source", SOURCES)
def test_a_part_of_a_model(trained, source):
    first, folder = trained
    second = make(lambda: functional(head="other"), seed=2, loss="mae")
    before = values(second)
    report = initialize_from(
        second, str(folder / source), only="encoder/first/.*"
    )
    after, theirs = values(second), values(first)
    for i in range(len(after)):
        expected = theirs[i] if i < 2 else before[i]
        assert np.array_equal(after[i], expected), i
    assert names(report.loaded) == ENCODER[:2]
    assert names(report.not_selected) == [
        *ENCODER[2:],
        "other/kernel",
        "other/bias",
    ]
    assert not report.not_found
    # Of what it holds, all but the two.
    assert len(report.not_used) == 6


@pytest.mark.parametrize("source", SOURCES)
def test_the_report_names_shapes_and_what_is_new(trained, source):
    _, folder = trained
    second = make(lambda: functional(units=5, head="other"), seed=2)
    before = values(second)
    with pytest.raises(UserError, match="no variable there has a path and"):
        initialize_from(second, str(folder / source))
    for mine, theirs in zip(values(second), before, strict=True):
        assert np.array_equal(mine, theirs)

    third = make(lambda: functional(units=5), seed=2)
    report = initialize_from(third, str(folder / source))
    assert names(report.loaded) == ["head/bias"]
    assert names(report.shape_differs) == [*ENCODER, "head/kernel"]
    entry = report.shape_differs[0]
    assert entry["shape"] == [3, 5]
    assert entry["shape_there"] == [3, 4]
    assert "shape differs" in report.table()
    assert "[3, 5]" in report.table()
    assert "there [3, 4]" in report.table()


def test_names_that_keras_counted_up(tmp_path):
    def unnamed():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    first = make(unnamed, seed=1)
    first.train(3, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    second = make(unnamed, seed=2)
    assert second.model.layers[0].name != first.model.layers[0].name
    report = initialize_from(second, str(tmp_path))
    assert np.array_equal(values(second)[0], values(first)[0])
    assert len(report.loaded) == 2
    assert "path_there" in report.loaded[0]


def test_layers_are_told_apart_by_name_not_by_order(tmp_path):
    """Two layers of equal shapes that stand the other way round."""

    def two(names):
        layers = [keras.layers.Dense(3, name=name) for name in names]
        return keras.Sequential([keras.Input((3,)), *layers])

    first = make(lambda: two(("a", "b")), seed=1, loss="mse")
    first.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    second = make(lambda: two(("b", "a")), seed=2)
    initialize_from(second, str(tmp_path))
    mine, theirs = values(second), values(first)
    assert np.array_equal(mine[0], theirs[2])
    assert np.array_equal(mine[2], theirs[0])


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        # A name that is found elsewhere contradicts the order.
        ("decoder encoder old", "encoder decoder new", (1, 0, None)),
        ("block_1 block_2 block_3", "block_0 block_1 block_2", (None, 0, 1)),
        # Renamed, in the same order.
        ("encoder decoder old", "encoder decoder new", (0, 1, 2)),
        # Counted by Keras itself.
        ("dense dense_1 dense_2", "dense_1 dense_2 dense_3", (0, 1, 2)),
    ],
)
def test_the_order_decides_only_where_no_name_contradicts(
    tmp_path, there, here, expected
):
    def named(names):
        layers = [keras.layers.Dense(3, name=name) for name in names.split()]
        return keras.Sequential([keras.Input((3,)), *layers])

    first = make(lambda: named(there), seed=1, loss="mse")
    first.train(2, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    second = make(lambda: named(here), seed=2)
    new = values(make(lambda: named(here), seed=2))
    initialize_from(second, str(tmp_path))
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
    other = make(
        lambda: keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, name="encoder"),
                keras.layers.Dense(2, name="classes"),
            ]
        ),
        seed=2,
    )
    report = initialize_from(other, str(tmp_path))
    assert names(report.loaded) == ["encoder/kernel", "encoder/bias"]
    assert names(report.not_found) == ["classes/kernel", "classes/bias"]
    assert names(report.not_used) == ["head/kernel", "head/bias"]


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ("encodr/.*", ("encodr", "is the whole path of no variable", "It has")),
        ("encoder", ("is the whole path of no variable",)),
        ("(", ("is no regular expression",)),
        ("", ("is the whole path of no variable",)),
    ],
)
def test_a_selection_of_nothing_is_refused(trained, only, words):
    _, folder = trained
    with pytest.raises(UserError) as caught:
        initialize_from(make(functional), str(folder), only=only)
    for word in words:
        assert word in str(caught.value)


def broken(tmp_path, trained, kind):
    _, folder = trained
    path = tmp_path / ("a.keras" if "keras" in kind else "a.weights.h5")
    content = (folder / f"model{path.name[1:]}").read_bytes()
    if kind.startswith("cut"):
        content = content[: len(content) // 2]
    elif kind.startswith("text"):
        content = b"no such format"
    elif kind == "empty keras":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("config.json", "{}")
        content = buffer.getvalue()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "kind", ["cut keras", "cut h5", "text keras", "text h5", "empty keras"]
)
def test_a_damaged_file_is_a_sentence(trained, tmp_path, kind):
    path = broken(tmp_path, trained, kind)
    with pytest.raises(UserError, match="cannot be read as a Keras file"):
        initialize_from(make(functional), str(path))


def test_what_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        initialize_from(make(functional), str(tmp_path / "a.keras"))
    with pytest.raises(UserError, match="holds no usable checkpoint"):
        initialize_from(make(functional), str(tmp_path / "nowhere"))


def test_a_file_of_keras_2_is_named(tmp_path):
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["layer_names"] = ["a"]
    with pytest.raises(UserError, match="a file of Keras 2"):
        initialize_from(make(functional), str(tmp_path / "old.h5"))


def test_a_file_reads_no_other_file(trained, tmp_path):
    """HDF5 has datasets that lie elsewhere, and links."""
    (tmp_path / "secret").write_bytes(bytes(48))
    path = tmp_path / "a.weights.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/sequential/layers/dense/vars")
        group.create_dataset(
            "0", (3, 4), "float32", external=[(tmp_path / "secret", 0, 48)]
        )
    with pytest.raises(UserError, match="refers to another file"):
        initialize_from(make(functional), str(path))
    _, folder = trained
    shutil.copy(folder / "model.weights.h5", tmp_path / "b.h5")
    with h5py.File(path, "w") as file:
        file["layers"] = h5py.ExternalLink(str(tmp_path / "b.h5"), "/layers")
    with pytest.raises(UserError, match="It holds: ;|no variable there"):
        initialize_from(make(functional), str(path))


def test_no_class_of_the_file_is_needed(tmp_path):
    """Nor is any made: its code would run."""

    class Unknown(keras.layers.Dense):
        pass

    inputs = keras.Input((3,))
    model = keras.Model(
        inputs,
        keras.layers.Lambda(lambda x: x * 2)(
            Unknown(4, name="body")(inputs),
        ),
    )
    model.save(tmp_path / "custom.keras")
    trainer = make(sequential, seed=3)
    report = initialize_from(trainer, str(tmp_path / "custom.keras"))
    assert names(report.loaded) == ["body/kernel", "body/bias"]
    assert np.array_equal(values(trainer)[0], model.variables[0].numpy())


# Through the command line.


def start(root, folder, *arguments):
    return subprocess.run(
        [
            sys.executable,
            *("-m", "trainer", f"--gin_file={root}/experiments/digits.gin"),
            "--gin.run.callbacks=[@Checkpoint()]",
            *arguments,
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_command_line(root, tmp_path):
    done = start(root, tmp_path, "--model_dir=a", "--train_steps=3")
    assert done.returncode == 0, done.stderr[-4000:]
    arguments = (
        "--model_dir=b",
        "--init_from=a",
        "--gin.run.init_only='.*kernel'",
    )
    done = start(root, tmp_path, *arguments, "--train_steps=2")
    assert done.returncode == 0, done.stderr[-4000:]
    path = pathlib.Path(tmp_path, "b", "init_report.json")
    report = json.loads(path.read_text())
    assert report["source"] == "a/checkpoints, step 3"
    assert report["init_only"] == ".*kernel"
    assert report["loaded"]
    assert all(e["path"].endswith("kernel") for e in report["loaded"])
    assert report["not_selected"]
    # A run that goes on is not initialized again.
    path.unlink()
    done = start(root, tmp_path, *arguments, "--train_steps=4")
    assert done.returncode == 0, done.stderr[-4000:]
    assert not path.exists()


def test_the_command_line_refuses(root, tmp_path):
    done = start(root, tmp_path, "--model_dir=b", "--gin.run.init_only='a.*'")
    assert done.returncode == 2
    assert "run.init_only = 'a.*' needs a run to take from" in done.stderr
    assert not (tmp_path / "b").exists()
