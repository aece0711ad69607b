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

from tests.sets import long, ordinary
from trainer import UserError
from trainer_plugins import TPU

HERE = os.path.dirname(__file__)
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs [tpu-check]"
)
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


# What must be in the sentence that ends the check.
ODD_ONES = {
    "python": r"EagerPyFunc in the layer 'the_odd_one' .* Python code",
    "text": r"AsString in the layer 'the_odd_one' works on strings",
    "positive": r"Where in the layer 'the_odd_one' .* depends on the data",
    "printed": r"StringFormat in the layer 'the_odd_one' prints .* as a metric",
    "looked_up": r"LookupTableFind.* in the layer 'the_odd_one' .*Dataset.map",
    "looked_up_in_keras": r"LookupTableFind.* in the layer 'integer_lookup'",
    "unbounded": r"in the layer 'the_odd_one': .*tf.while_loop maximum_iterat",
    "float64": r"gradient of the layer 'before' is float64 .* Use float32",
}


@needs_compiler
@pytest.mark.parametrize("what", ordinary(ODD_ONES, ["python", "float64"]))
def test_an_operation_that_no_tpu_has(tmp_path, what):
    done = check_odd(tmp_path, what)
    assert done.returncode == 2
    # Before it, the model that prints has done so.
    (line,) = re.findall("(?m)^error: .*", done.stderr)
    assert re.search(ODD_ONES[what], line)
    found = report(tmp_path / "run")
    assert found["would_start"] is False
    assert re.search(ODD_ONES[what], found["error"])


@needs_compiler
@pytest.mark.parametrize("what", [long("double")])
def test_float64_that_is_not_reduced_compiles(tmp_path, what):
    done = check_odd(tmp_path, what)
    assert done.returncode == 0, done.stderr
    training, *_ = programs(tmp_path / "run")
    step = report(tmp_path / "run")["training_step_on_v5e_2x2"]
    # Each byte that must move is read or written once, at full bandwidth.
    assert step["step_time_at_least"] == pytest.approx(
        1 / step["steps_a_second_at_most"]
    )
    assert training["arguments"] / 800e9 <= step["memory_time"]
    assert step["memory_time"] <= training["accessed"] / 800e9


@needs_compiler
def test_hosts_of_a_slice_read_the_data_as_in_the_run(tmp_path):
    text = "Trainer.data = @generated\nTrainer.batch_size = 16\n"
    done = check_odd(tmp_path, "double", text=text, topology="v5e:4x4")
    assert done.returncode == 2
    (line,) = re.findall("(?m)^error: .*", done.stderr)
    assert re.search("data runs Python code .* on the TPU's hosts", line)


@needs_compiler
def test_a_batch_that_is_too_large(tmp_path):
    done = check_odd(
        tmp_path, "large", "--batch_size=262144", text="numbers.size = 262144\n"
    )
    assert done.returncode == 2
    assert "does not fit into the memory of a v5e chip" in done.stderr
    assert " and 15.75G are available" in done.stderr
    assert "the layer 'the_odd_one'" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e", "such as v5e:2x4"),
        ("v5x:2x2", "no such kind of chip.*Valid: v4, v5e, v5p, v6e"),
        ("v5p:2x2", "no slice 2x2. Valid: 2x2x1.*multiples of 4"),
        ("v5p:0x4x4", "no slice 0x4x4"),
        ("v6e:4x4", "has 4 hosts.*fails with KeyError.*1x1, 2x2 or 2x4"),
    ],
)
def test_what_is_no_slice(text, message):
    with pytest.raises(UserError, match=message):
        TPU(tpu_topology=text)


def test_there_or_not_there():
    with pytest.raises(UserError, match="Leave one of them out"):
        TPU(tpu="local", tpu_topology="v5e:2x2")


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
    with pytest.raises(UserError, match="jaxlib .*, but 0.99 is installed"):
        _ = plugin.strategy
    del versions["libtpu"], versions["jaxlib"]
    with pytest.raises(UserError, match=r"none is installed.*\[tpu-check"):
        _ = plugin.strategy
