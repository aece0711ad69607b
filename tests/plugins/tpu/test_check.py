"""`--mode=check --tpu_topology=...`: what compiles, and what must fail."""

import configparser
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from tests.plugins.tpu import tpu_models
from tests.sets import one_in
from trainer import UserError
from trainer_plugins import TPU

HERE = os.path.dirname(__file__)
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs [tpu-check]"
)
TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")
ODD = """
import tpu_models
Trainer.model = @odd_model
odd_model.what = '{what}'
Trainer.loss = 'mse'
Trainer.optimizer = 'sgd'
Trainer.data = @numbers
Trainer.batch_size = 8
run.strategy = 'tpu'
run.callbacks = [@Checkpoint()]
"""
LARGE = """
Trainer.loss = @losses.SparseCategoricalCrossentropy()
losses.SparseCategoricalCrossentropy.from_logits = True
Trainer.model = @{model}
Trainer.data = @{data}
"""


def check(folder, gin_file, *arguments, topology="v5e:2x2", timeout=550):
    return subprocess.run(
        [
            *(sys.executable, "-m", "trainer", "--mode=check"),
            f"--gin_file={gin_file}",
            f"--tpu_topology={topology}",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def check_odd(folder, what, *arguments, text="", **options):
    (folder / "odd.gin").write_text(ODD.format(what=what) + text)
    return check(folder, "odd.gin", "--model_dir=run", *arguments, **options)


def report(folder):
    (name,) = os.listdir(folder)
    assert name == "check.json"
    return json.loads((folder / name).read_text())


def programs(folder, topology="v5e:2x2"):
    sections = report(folder)
    chips = topology.replace(":", "_")
    found = [
        sections[f"{name}_on_{chips}"]
        for name in ("training_step", "evaluation_step", "export")
    ]
    assert all(one["compiles"] for one in found)
    return found


@needs_compiler
def test_tpu_mnist_compiles(tmp_path, root, mnist_dir):
    done = check(
        root,
        "experiments/tpu_mnist.gin",
        f"--data_dir={mnist_dir}",
        f"--model_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 0, done.stderr
    assert "CPU platform" in done.stdout
    found = report(tmp_path / "run")
    assert found["would_start"] is True
    assert found["run"]["replicas"] == 4
    training, evaluation, export = programs(tmp_path / "run")
    # Three times the evaluation but for the first layer's input.
    assert 2 < training["FLOP"] / evaluation["FLOP"] < 3
    assert export["live"] <= evaluation["live"] < training["live"]
    step = found["training_step_on_v5e_2x2"]
    # Each gradient, and a few scalars of the logs.
    gradients = 4 * found["model"]["trainable_parameters"]
    assert gradients <= step["reduced_bytes"] < gradients + 200
    # A ring: 2 (n - 1) / n of the bytes over two of the four links.
    seconds = 2 * 3 / 4 * step["reduced_bytes"] / (200e9 * 2 / 4)
    assert step["all_reduce_time"] == pytest.approx(seconds)


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_resnet50_costs_what_it_must(tmp_path, topology):
    live = {}
    for precision in ("mixed_bfloat16", "float32"):
        for rows in (128, 256):
            run = f"{precision}_{rows}"
            done = check_odd(
                tmp_path,
                "large",
                f"--model_dir={run}",
                f"--batch_size={4 * rows}",
                f"--mixed_precision={precision}",
                f"--gin.images.size={4 * rows}",
                "--allow_unused_bindings",
                text=LARGE.format(model="resnet50", data="images"),
                topology=topology,
            )
            assert done.returncode == 0, done.stderr
            training = programs(tmp_path / run, topology)[0]
            live[precision, rows] = training["live"]
            # Multiplications and additions of a forward pass, each counted:
            # Keras strides in the first 1x1 convolution of a stage, as the
            # paper does (He et al., 2015, table 1: 3.8e9 multiply-adds).
            expected = 3 * 2 * 3.86e9 * rows
            assert training["FLOP"] == pytest.approx(expected, rel=0.1)
        # All but the variables and the program doubles.
        assert 1.5 < live[precision, 256] / live[precision, 128] < 2.1
    assert 1.3 < live["float32", 256] / live["mixed_bfloat16", 256] < 2.1


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_transformer_costs_what_it_must(tmp_path, topology):
    done = check_odd(
        tmp_path,
        "large",
        "--batch_size=32",
        "--mixed_precision=mixed_bfloat16",
        "--allow_unused_bindings",
        text=LARGE.format(model="transformer", data="words"),
        topology=topology,
    )
    assert done.returncode == 0, done.stderr
    width, length, blocks, words = (
        tpu_models.WIDTH,
        tpu_models.LENGTH,
        tpu_models.BLOCKS,
        tpu_models.WORDS,
    )
    tokens = 32 // 4 * length
    # Without the embedding, whose rows are looked up.
    parameters = blocks * 12 * width**2 + width * words
    attention = 12 * blocks * width * length * tokens
    expected = 6 * parameters * tokens + attention
    found = programs(tmp_path / "run", topology)[0]["FLOP"]
    assert found == pytest.approx(expected, rel=0.1)


# What must be in the sentence that ends the check.
ODD_ONES = {
    "python": r"EagerPyFunc in the layer 'the_odd_one' .* Python code",
    "text": r"AsString in the layer 'the_odd_one' works on strings",
    "positive": r"Where in the layer 'the_odd_one' .* depends on the data",
}


@needs_compiler
@pytest.mark.parametrize("what", one_in(2, ODD_ONES))
def test_an_operation_that_no_tpu_has(tmp_path, what):
    done = check_odd(tmp_path, what)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert re.search(ODD_ONES[what], line)
    found = report(tmp_path / "run")
    assert found["would_start"] is False
    assert "the_odd_one" in found["error"]


@needs_compiler
def test_a_batch_that_is_too_large(tmp_path):
    done = check_odd(
        tmp_path, "large", "--batch_size=262144", text="numbers.size = 262144\n"
    )
    assert done.returncode == 2
    assert "does not fit into the memory of a v5e chip" in done.stderr
    assert " of 15.75G that there are" in done.stderr
    assert "the layer 'the_odd_one'" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e", "such as v5e:2x4"),
        ("v5e:2x2;rm", "such as v5e:2x4"),
        ("v5x:2x2", "no figures for v5x.*Valid: v4, v5e, v5p, v6e"),
        ("v5e:3x3", "no slice 3x3. Valid: 1x1, 2x2, 2x4"),
        ("v5p:2x2", "no slice 2x2. Valid: 2x2x1.*multiples of 4"),
        ("v5p:8x4x4", "no slice 8x4x4"),
        ("v5p:0x4x4", "no slice 0x4x4"),
        ("v4:04x04x04", "no slice 04x04x04"),
    ],
)
def test_what_is_no_slice(text, message):
    with pytest.raises(UserError, match=message):
        TPU(tpu_topology=text)


@pytest.mark.parametrize(
    ("text", "chips"), [("v5e:1x1", 1), ("v6e:16x16", 256), ("v5p:4x4x8", 128)]
)
def test_each_chip_of_a_slice_is_a_replica(text, chips, versions):
    assert TPU(tpu_topology=text).num_replicas == chips


def test_there_or_not_there():
    with pytest.raises(UserError, match="Leave one of them out"):
        TPU(tpu="local", tpu_topology="v5e:2x2")


def test_a_tpu_that_is_not_there_is_only_for_checks(root):
    done = check(
        root, "experiments/digits.gin", "--strategy=tpu", "--mode=train"
    )
    assert done.returncode == 2
    assert "names a TPU that is not here" in done.stderr


@pytest.fixture
def versions(monkeypatch, root):
    """What is installed, as it seems: the versions that setup.cfg pins."""
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    lines = setup["options.extras_require"]["tpu-check"].split("\n")
    pinned = dict(line.split(";")[0].split("==") for line in lines if line)

    def version(package):
        if package not in pinned:
            raise importlib.metadata.PackageNotFoundError(package)
        return pinned[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return pinned


def test_a_package_that_is_missing_or_another_is_one_sentence(versions, root):
    constraints = (root / ".ci" / "constraints.txt").read_text().splitlines()
    for package, tested in versions.items():
        assert f"{package}=={tested}" in constraints
    plugin = TPU(tpu_topology="v5e:2x2")
    versions["jaxlib"] = "0.99"
    with pytest.raises(UserError, match="jaxlib .*, and there is 0.99"):
        _ = plugin.strategy
    del versions["libtpu"], versions["jaxlib"]
    with pytest.raises(UserError, match=r"there is none.*\[tpu-check\]"):
        _ = plugin.strategy
