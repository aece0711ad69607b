"""A new run takes over weights: what fits, what was asked for, no more."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tracemalloc
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
from trainer_plugins.callbacks.checkpoint import Checkpoint


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
    first = make(linear, seed=1)
    first.train(3, model_dir=str(tmp_path), callbacks=[Checkpoint()])
    second = make(linear, seed=2)
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
        ("encodr/.*", ("encodr", "does not match the whole path", "It has")),
        ("encoder", ("does not match the whole path",)),
        ("(", ("is not a regular expression",)),
        ("", ("does not match the whole path",)),
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


@pytest.mark.long
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
    assert "run.init_only = 'a.*' needs a run to load from" in done.stderr
    assert not (tmp_path / "b").exists()


# Files that somebody has made up.


def made_up(tmp_path, fill, name="a.weights.h5"):
    path = tmp_path / name
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/body/vars")
        group.attrs["name"] = "body"
        fill(group)
    return path


def a_layer():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, name="body")]
    )


TEXT = h5py.string_dtype()
DATASETS = {
    "400 TB": lambda g: g.create_dataset("0", (10**7, 10**7), "float32"),
    "400 TB in chunks": lambda g: g.create_dataset(
        "0", (10**7, 10**7), "float32", chunks=(1000, 1000)
    ),
    "more than any number": lambda g: g.create_dataset(
        "0", (2**62, 3, 4), "float32", chunks=(1, 3, 4)
    ),
    "strings": lambda g: g.create_dataset("0", (3, 4), TEXT),
    "bytes": lambda g: g.create_dataset("0", (3, 4), "S10"),
    "empty": lambda g: g.create_dataset("0", data=h5py.Empty("float32")),
    "complex": lambda g: g.create_dataset("0", (3, 4), "complex64"),
    "a record": lambda g: g.create_dataset("0", (3, 4), "f4,i4"),
    "lists": lambda g: g.create_dataset(
        "0", (3, 4), h5py.vlen_dtype(np.dtype("float32"))
    ),
    "references": lambda g: g.create_dataset("0", (3, 4), h5py.ref_dtype),
    "opaque": lambda g: g.create_dataset("0", (3, 4), "V8"),
    "a scalar": lambda g: g.create_dataset("0", (), "float32"),
    "no rows": lambda g: g.create_dataset("0", (0, 4), "float32"),
    "a group": lambda g: g.create_group("0"),
    "a link in a circle": lambda g: g.__setitem__("0", h5py.SoftLink("/")),
    "nothing": lambda g: None,
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("archived", [False, True])
def test_what_is_no_array_of_the_model_is_not_read(tmp_path, kind, archived):
    path = made_up(tmp_path, DATASETS[kind])
    if archived:
        with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
            archive.write(path, "model.weights.h5")
        path = tmp_path / "a.keras"
    with pytest.raises(UserError, match="no variable there has a path"):
        initialize_from(make(a_layer), str(path))


@pytest.mark.parametrize("kind", DATASETS)
def test_what_fits_beside_it_is_read(tmp_path, kind):
    def fill(group):
        DATASETS[kind](group)
        group["1"] = np.arange(4, dtype="float32")

    trainer = make(a_layer)
    report = initialize_from(trainer, str(made_up(tmp_path, fill)))
    assert [one["path"] for one in report.loaded] == ["body/bias"]
    assert trainer.model.get_weights()[1].tolist() == [0, 1, 2, 3]


def test_an_archive_is_not_inflated(tmp_path):
    """A megabyte that would become more than one gigabyte."""
    path = tmp_path / "bomb.keras"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("model.weights.h5", "w") as entry,
    ):
        for _ in range(1200):
            entry.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(UserError, match="bytes of weights in"):
        initialize_from(make(a_layer), str(path))
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_a_compressed_file_that_is_no_larger_than_its_model(tmp_path):
    def fill(group):
        group["0"] = np.ones((3, 4), "float32")
        group["1"] = np.ones(4, "float32")

    made_up(tmp_path, fill)
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "a.weights.h5", "model.weights.h5")
    assert len(initialize_from(make(a_layer), str(path)).loaded) == 2


def test_a_chunk_that_is_damaged_is_a_sentence(tmp_path):
    def fill(group):
        group.create_dataset(
            "0", data=np.ones((3, 4), "float32"), compression="gzip"
        )
        group["1"] = np.ones(4, "float32")

    path = made_up(tmp_path, fill)
    content = path.read_bytes()
    with h5py.File(path) as file:
        chunk = file["layers/body/vars/0"].id.get_chunk_info(0)
    at, size = chunk.byte_offset, chunk.size
    path.write_bytes(content[:at] + b"\xff" * size + content[at + size :])
    with pytest.raises(UserError, match="cannot be read as a Keras file"):
        initialize_from(make(a_layer), str(path))


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
@pytest.mark.parametrize("kind", ["FIFO", "directory", "device"])
def test_what_is_no_file_is_a_sentence(tmp_path, suffix, kind):
    path = tmp_path / f"a{suffix}"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is not a file"):
        initialize_from(make(a_layer), str(path))


def test_a_file_without_end_is_not_read(tmp_path):
    """It takes no room on the disk."""
    for suffix in (".keras", ".weights.h5"):
        path = tmp_path / f"a{suffix}"
        path.touch()
        os.truncate(path, 1 << 43)
        with pytest.raises(UserError, match="cannot be read as a Keras"):
            initialize_from(make(a_layer), str(path))


def test_links_in_a_file_lead_to_no_other(tmp_path):
    os.mkfifo(tmp_path / "other.h5")
    other = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")

    def fill(group):
        group["0"] = np.ones((3, 4), "float32")
        group.file["model_weights"] = other
        group.file["layers"]["vars"] = other

    report = initialize_from(make(a_layer), str(made_up(tmp_path, fill)))
    assert [one["path"] for one in report.loaded] == ["body/kernel"]


def test_an_optimizer_begins_on_the_weights_that_were_read(trained):
    """ScheduleFreeAdamW keeps a copy of the weights it begins with."""
    _, folder = trained
    found = make(
        functional,
        seed=2,
        optimizer=lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
        data=lambda split: ArrayExamples(helpers.ARRAYS, shuffle=False),
    )
    initialize_from(found, str(folder / "model.weights.h5"))
    model = found.single_device_model()
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    x, y = helpers.ARRAYS
    for start in (0, 8):
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    found.train(2)
    for got, want in zip(values(found), model.variables, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
