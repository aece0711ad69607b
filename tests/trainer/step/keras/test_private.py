"""Private names are in the files that are for them, and required at start."""

import ast
import enum
import importlib
import runpy

import keras
import numpy as np
import pytest
from keras import layers

from tests.conftest import ROOT
from trainer import ArrayExamples, Trainer, UserError
from trainer.runtime import private_names

FILES = (
    "trainer/step/keras/private.py",
    "trainer/runtime/tensorflow_private.py",
)
# Of this project, of Python, and of TensorFlow's objects.
OURS = {"_is_fit", "_new_run", "_recipe", "_rows", "_run", "_spec"}
PYTHONS = {"_exit", "_is_protocol", "_replace", "_run_exitfuncs", "_shutdown"}
TENSORFLOWS = {
    "_allow_run_without_coordinator",
    "_cluster",
    "_omit_frequent_tracing_warning",
    "_rng",
    "_seed",
}
ALLOWED = OURS | PYTHONS | TENSORFLOWS


def sources():
    for room in ("trainer", "plugins", "experiments"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if "private" not in path.name:
                yield path


def private_names_of(tree):
    """What is read of other objects by a name that is not public."""
    for node in ast.walk(tree):
        name = owner = None
        if isinstance(node, ast.Attribute):
            name, owner = node.attr, ast.unparse(node.value)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            name, owner = node.args[1].value, ast.unparse(node.args[0])
        if name is None or owner in ("self", "cls", "super()"):
            continue
        if name.startswith("_") and not name.startswith("__"):
            yield name


def test_no_other_file_has_a_private_name():
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in sources()
        for name in private_names_of(ast.parse(path.read_text()))
        if name not in ALLOWED
    }
    assert not found


def test_no_other_file_imports_what_keras_does_not_export():
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            text = getattr(node, "module", None) or getattr(node, "value", "")
            is_private = isinstance(text, str) and text.startswith("keras.src")
            assert not is_private, path


def required(path, monkeypatch):
    """The owners and names that a file requires as it is imported."""
    found = []
    own = private_names.require

    def require(owner, name):
        found.append((owner, name))
        return own(owner, name)

    with monkeypatch.context() as patched:
        patched.setattr(private_names, "require", require)
        runpy.run_path(str(ROOT / path))
    return found


def take_away(owner, name, patched):
    """Deletes a name where it is; whether that is possible."""
    if isinstance(owner, str):
        owner = importlib.import_module(owner)
    holders = owner.__mro__ if isinstance(owner, type) else [owner]
    holder = next((one for one in holders if name in vars(one)), None)
    if holder is None or isinstance(owner, enum.EnumMeta):
        return False
    patched.delattr(holder, name)
    return True


@pytest.mark.parametrize("path", FILES)
def test_a_name_that_is_gone_is_a_sentence_at_start(path, monkeypatch):
    names = required(path, monkeypatch)
    assert len(names) > 5
    tried = 0
    for owner, name in names:
        with monkeypatch.context() as patched:
            if take_away(owner, name, patched):
                tried += 1
                with pytest.raises(UserError, match=f"{name} is missing"):
                    runpy.run_path(str(ROOT / path))
    assert tried >= len(names) - 3


def test_an_optimizer_keeps_what_it_excludes_under_the_name_that_is_read():
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert hasattr(optimizer, "_exclude_from_weight_decay")


def test_a_masked_model_trains_as_in_fit():
    """Numbers would be others without a word, were a mask lost."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 7, (12, 5))
    x[np.arange(5) >= rng.integers(1, 6, 12)[:, None]] = 0
    y = rng.normal(size=(12, 5, 1)).astype("float32")

    def model():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(7, 3, mask_zero=True),
                layers.LSTM(3, return_sequences=True),
                layers.Dense(1),
            ]
        )

    options = {"loss": "mse", "metrics": ["mae"]}
    trainer = Trainer(
        model=model,
        optimizer=lambda: keras.optimizers.SGD(0.1),
        data=lambda split: ArrayExamples((x, y), shuffle=False),
        batch_size=4,
        strategy="default",
        **options,
    )
    logs = trainer.train(3, log_every=3, verbose=0)
    plain = model()
    plain.compile(keras.optimizers.SGD(0.1), **options)
    history = plain.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
    pairs = zip(trainer.model.get_weights(), plain.get_weights(), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    assert logs["mae"] == pytest.approx(history["mae"][0], abs=1e-6)
