"""Runs a file of Keras' own tests."""

import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import keras

from tests.conftest import ROOT

SOURCES = pathlib.Path(keras.__file__).parent / "src"
FILES = (
    *("models/model_test.py", "models/functional_test.py"),
    *("models/sequential_test.py", "trainers/trainer_test.py"),
    *("distillation/distiller_test.py", "wrappers/sklearn_test.py"),
    *("distillation/distillation_loss_test.py",),
    *("metrics/confusion_metrics_test.py",),
    *(
        # Of what is not installed by this project, Orbax among them.
        str(path.relative_to(SOURCES))
        for folder in ("callbacks", "optimizers")
        for path in sorted((SOURCES / folder).glob("*_test.py"))
        if path.stem not in ("orbax_checkpoint_test", "remote_monitor_test")
    ),
)
# The models of one file are layers mixed with what has Keras' `fit`, and no
# `keras.Model`s, which is what a Trainer takes.
_AS_MODELS = (
    (r"\(Trainer, layers\.Layer\)", "(models.Model)"),
    (r"\(Trainer, layers\.Dense\)", "(layers.Dense, models.Model)"),
    (r"(?m)^( +)layers\.Layer(\.__init__\(self)", r"\1models.Model\2"),
    (r"(?m)^ +Trainer\.__init__\(self\)\n", ""),
    # A model has layers of its own.
    (r"self\.layers\b", "self.own_layers"),
    (r"first_kernel = model\.layers", "first_kernel = model.own_layers"),
)


def run(file, *options, report=None):
    """Runs pytest on a file, with a Trainer in place of Keras' `fit`.

    Args:
        file: below Keras' sources.
        *options: of pytest.
        report: where to write the results, as JUnit's XML.

    Returns:
        The process that has ended.
    """
    text = (SOURCES / file).read_text()
    if file == "trainers/trainer_test.py":
        for pattern, replacement in _AS_MODELS:
            text = re.sub(pattern, replacement, text)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / pathlib.Path(file).name
        copy.write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short"]
        command += ["-p", "no:cacheprovider", "-p", "tests.keras_own.answered"]
        command += ["-W", "ignore", f"--rootdir={folder}", str(copy)]
        command += [f"--junitxml={report}"] if report else []
        return subprocess.run([*command, *options], cwd=ROOT, check=False)


def results(report):
    """The tests that passed and failed: their names to whether they passed."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            failed = case.find("failure") is not None
            failed = failed or case.find("error") is not None
            name = f"{case.get('classname').split('.')[-1]}.{case.get('name')}"
            # An address differs from one process to the next.
            found[re.sub(r"0x[0-9a-f]+", "0x", name)] = not failed
    return found
