"""Tasks of one run that were not given the same, or are not the same code."""

import numpy as np
import pytest

from tests.faults.runs import ROOT
from tests.faults.test_two_workers import PAIR

CODE = """
import gin
import keras


@gin.configurable
def net():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense({units})])
"""


# Texts lie elsewhere in each process; draws without a seed differ in each.
MADE = """
import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable
def net():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            layers.Hashing(16),
            layers.Embedding(16, 3),
            layers.Flatten(),
        ]
    )


@gin.configurable
def data(split):
    texts = np.array([[f"row {i}, and more"] for i in range(48)], object)
    return texts, np.arange(48) % 3


@gin.configurable
def drawn(split):
    def draw(text, target):
        return text + tf.as_string(tf.random.uniform([1])), target

    return tf.data.Dataset.from_tensor_slices(data(split)).map(draw).batch(12)
"""


def assert_all_say(processes, *words):
    """Each ends with 2 and in a sentence that tells both tasks apart."""
    for process in processes:
        process.must_end(2, seconds=120)
        assert "Traceback" not in process.log
        process.sentence("worker 0", "worker 1", *words)


def test_another_configuration_is_refused(runs):
    first = runs.tasks(start=["worker_0"], **PAIR)
    second = runs.tasks("--batch_size=24", start=["worker_1"], **PAIR)
    assert_all_say([*first.values(), *second.values()])
    assert not (runs.model_dir / "checkpoints").exists()


@pytest.mark.long
def test_other_code_is_refused(runs, tmp_path):
    """The same files and flags, and another module on one of the hosts."""
    (tmp_path / "own.gin").write_text("import own\nTrainer.model = @net\n")
    runs.flags = (f"--gin_file={tmp_path}/own.gin",)
    processes = []
    for number, units in enumerate((3, 4)):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        (folder / "own.py").write_text(CODE.format(units=units))
        started = runs.tasks(
            start=[f"worker_{number}"],
            environ={f"worker_{number}": {"PYTHONPATH": f"{folder}:{ROOT}"}},
            **PAIR,
        )
        processes += started.values()
    assert_all_say(processes)


@pytest.mark.long
@pytest.mark.parametrize("data", ["data", "drawn"])
def test_data_that_only_looks_different_is_taken(runs, tmp_path, data):
    (tmp_path / "own.py").write_text(MADE)
    (tmp_path / "own.gin").write_text("import own\nTrainer.model = @net\n")
    runs.flags = (f"--gin_file={tmp_path}/own.gin",)
    environ = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    tasks = runs.tasks(
        f"--gin.Trainer.data=@own.{data}",
        environ={f"worker_{number}": environ for number in range(2)},
        **PAIR,
    )
    for process in tasks.values():
        process.must_end(0)


def change_nothing(folder):
    pass


def drop_a_file(split):
    def change(folder):
        next((folder / split).iterdir()).unlink()

    return change


def rename_files(folder):
    """The same files, which come in another order."""
    first, second, *_ = (folder / "train").iterdir()
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (drop_a_file("train"), "the batches of train: 4 on worker 0; 2 on w"),
        (rename_files, "the first batch of train"),
        pytest.param(
            drop_a_file("eval"), "the batches of eval", marks=pytest.mark.long
        ),
        pytest.param(change_nothing, None, marks=pytest.mark.long),
    ],
)
def test_other_data_is_refused_before_the_first_step(
    runs, tmp_path, change, differs
):
    environ = {}
    for number in range(2):
        folder = tmp_path / f"host{number}"
        draws = np.random.default_rng(0)
        for split in ("train", "eval"):
            (folder / split).mkdir(parents=True)
            for name in "ab":
                x = draws.normal(size=(24, 6)).astype("float32")
                np.save(folder / split / f"{name}.npy", x)
        environ[f"worker_{number}"] = {"FAULTS_DATA": str(folder)}
    change(tmp_path / "host1")
    flags = ("--gin.Trainer.data=@files_of_host", "--train_steps=6")
    tasks = runs.tasks(*flags, environ=environ, **PAIR)
    if differs is None:
        for process in tasks.values():
            process.must_end(0)
    else:
        assert_all_say(tasks.values(), differs)
        assert not (runs.model_dir / "metrics.jsonl").exists()


def test_a_directory_that_is_not_shared_is_refused(runs, tmp_path):
    """Each host has a folder of that name, as without a network disk."""
    processes = []
    for number in range(2):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        name = f"worker_{number}"
        started = runs.tasks(
            "--model_dir=run",
            start=[name],
            environ={name: {"PYTHONPATH": str(ROOT)}},
            folder=folder,
            **PAIR,
        )
        processes += started.values()
    assert_all_say(processes, "run (all hosts must share it)", "null on")
    assert not list(tmp_path.rglob("metrics.jsonl"))
