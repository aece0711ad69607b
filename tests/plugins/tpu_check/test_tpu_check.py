"""`--mode=check --tpu_topology=...`: what compiles, and what must fail."""

import configparser
import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

from tests.sets import one_in
from trainer import UserError
from trainer.experiment import build
from trainer.strategy.registry import find_strategy
from trainer_plugins.tpu_check import libtpu_process
from trainer_plugins.tpu_check.topology import CHIPS

HERE = os.path.dirname(__file__)
WHY_NOT = libtpu_process.why_not_here()
needs_compiler = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}")
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


def check_odd(folder, what, *arguments, text=""):
    (folder / "odd.gin").write_text(ODD.format(what=what) + text)
    return check(folder, "odd.gin", *arguments)


def report(folder):
    (name,) = os.listdir(folder)
    assert name == "check.json"
    return json.loads((folder / name).read_text())


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
    assert found["model"]["parameters"] == 347_146
    lines = found["TPU_v5e_2x2"]["lines"]
    assert [line["program"] for line in lines] == [
        "training step",
        "evaluation step",
        "export",
    ]
    training, evaluation, export = lines
    # Three times the evaluation but for the first layer's input.
    assert 2 < training["FLOP"] / evaluation["FLOP"] < 3
    assert export["live"] <= evaluation["live"] < training["live"]
    step = found["training_step_on_v5e_2x2"]
    # Each gradient, and a few scalars of the logs.
    gradients = 4 * found["model"]["trainable_parameters"]
    assert gradients <= step["reduced_bytes"] < gradients + 200


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
@pytest.mark.parametrize("name", ["digits", "tpu_mnist"])
def test_experiments_compile(tmp_path, root, mnist_dir, name, topology):
    done = check(
        root,
        f"experiments/{name}.gin",
        "--strategy=tpu",
        *([f"--data_dir={mnist_dir}"] if name == "tpu_mnist" else []),
        f"--model_dir={tmp_path / 'run'}",
        topology=topology,
    )
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "run")
    lines = found[f"TPU_{topology.replace(':', '_')}"]["lines"]
    assert [line["compiles"] for line in lines] == [True] * 3


# What must be in the sentence that ends the check.
ODD_ONES = {
    "python": r"EagerPyFunc in the layer 'the_odd_one' .* Python code",
    "text": r"AsString in the layer 'the_odd_one' works on strings",
    "positive": r"Where in the layer 'the_odd_one' .* depends on the data",
}


@needs_compiler
@pytest.mark.parametrize("what", one_in(2, ODD_ONES))
def test_an_operation_that_no_tpu_has(tmp_path, what):
    done = check_odd(tmp_path, what, "--model_dir=run")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert re.search(ODD_ONES[what], line)
    found = report(tmp_path / "run")
    assert found["would_start"] is False
    assert "the_odd_one" in found["error"]


@needs_compiler
def test_a_batch_of_no_fixed_shape(tmp_path):
    text = "Trainer.model = @pooled_model\nTrainer.data = @sentences\n"
    done = check_odd(tmp_path, "text", "--allow_unused_bindings", text=text)
    assert done.returncode == 2
    assert "part 0 of a batch has the shape (None, None)" in done.stderr


@needs_compiler
def test_a_batch_that_is_too_large(tmp_path):
    done = check_odd(
        tmp_path, "large", "--batch_size=262144", text="numbers.size = 262144\n"
    )
    assert done.returncode == 2
    assert "does not fit into the memory of a v5e chip" in done.stderr
    limit = re.search(r" of ([\d.]+)G that there are", done.stderr)
    assert CHIPS["v5e"].hbm_bytes == float(limit[1]) * 2**30
    assert "the layer 'the_odd_one'" in done.stderr
    assert "--fit_batch" in done.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("default", {"tpu_topology": "v5e:2x2"}, "no meaning.*'default'"),
        ("mirrored", {"fit_batch": True}, "It is for: tpu"),
        (
            "tpu",
            {"tpu": "local", "tpu_topology": "v5e:2x2"},
            "Leave one of them out",
        ),
        ("tpu", {"fit_batch": True}, "--tpu_topology=v5e:2x4"),
        ("tpu", {"tpu_topology": "v5e:3x3"}, "no slice 3x3"),
    ],
)
def test_what_cannot_be_combined(name, options, message):
    with pytest.raises(UserError, match=message):
        find_strategy(name, **options)


@pytest.mark.parametrize("mode", ["train", "eval", "export"])
def test_a_tpu_that_is_not_there_is_only_for_checks(tmp_path, mode):
    run = str(tmp_path / "run")
    with pytest.raises(UserError, match="tpu_topology = .*check"):
        build(
            mode=mode,
            model_dir=run,
            strategy="tpu",
            tpu_topology="v5e:2x2",
        )


def test_a_package_that_is_missing_or_another_is_one_sentence(monkeypatch):
    found = dict(libtpu_process.TESTED)

    def version(package):
        if package not in found:
            raise importlib.metadata.PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert libtpu_process.why_not_here() is None
    found["jaxlib"] = "0.99"
    plugin = find_strategy("tpu", tpu_topology="v5e:2x2")
    with pytest.raises(UserError, match="jaxlib 0.99 instead of .*tpu-check"):
        _ = plugin.strategy
    del found["libtpu"]
    with pytest.raises(UserError, match=r"libtpu, which is .*\[tpu-check\]"):
        _ = plugin.strategy


def test_the_extra_pins_what_was_tested(root):
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    lines = setup["options.extras_require"]["tpu-check"].split("\n")
    pinned = dict(line.split(";")[0].split("==") for line in lines if line)
    assert pinned == libtpu_process.TESTED
    constraints = (root / ".ci" / "constraints.txt").read_text().splitlines()
    for package, tested in pinned.items():
        assert f"{package}=={tested}" in constraints
