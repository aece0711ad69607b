"""A model_dir that one user wrote runs no code in another's process."""

import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

from tests.helpers import manifest_entry
from tests.trainer.checkpoint.untrusted_run import callbacks, make
from trainer.plugin_api import storage

HERE = pathlib.Path(__file__).parent


class Harm:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path(self.path),))


def resume(root, *arguments):
    return subprocess.run(
        [sys.executable, HERE / "untrusted_run.py", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def model_dir(tmp_path):
    """A run of four steps."""
    make().train(4, model_dir=str(tmp_path / "run"), callbacks=callbacks())
    return tmp_path / "run"


def save_crafted(model_dir, change):
    """Writes step 6 with right checksums and other content."""
    directory = str(model_dir / "checkpoints")
    snapshot = storage.load_newest(directory)
    change(snapshot)
    storage.save(
        directory,
        storage.Snapshot(6, snapshot.arrays, snapshot.host),
    )


def test_the_watch_sees_a_pickle(root, tmp_path):
    """Else the other tests here would show nothing."""
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    code = (
        "import sys, pickle, untrusted_run as run;"
        "sys.addaudithook(run.refuse);"
        f"pickle.load(open({str(path)!r}, 'rb'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{HERE}:{root}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr[-2000:]
    assert not (tmp_path / "harm").exists()


def test_state_of_callbacks_is_only_values(root, model_dir, tmp_path):
    """Whatever a checkpoint says of them, no function of theirs changes."""
    harm = pickle.dumps(Harm(tmp_path / "harm")).decode("latin-1")

    def change(snapshot):
        for state in snapshot.host["callbacks"].values():
            state |= {
                "monitor_op": harm,
                "on_train_end": harm,
                "on_epoch_end": ["os.system", "touch harm"],
                "__class__": harm,
                "__reduce__": ["py/object", "os.system"],
                "model": harm,
                "trainer": harm,
            }
        for name in ("monitor_op", "on_epoch_end", "model", "new"):
            snapshot.arrays[f"callbacks/ReduceLROnPlateau/{name}"] = (
                np.frombuffer(pickle.dumps(harm), np.uint8)
            )
        snapshot.host["callbacks"]["os.system"] = {"command": "touch harm"}
        snapshot.arrays["harm"] = np.array(
            pickle.dumps(Harm(tmp_path / "harm")), object
        )

    save_crafted(model_dir, change)
    done = resume(root, model_dir)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "8"
    assert not (tmp_path / "harm").exists()


def test_pickles_in_the_place_of_files(root, model_dir, tmp_path):
    newest = pathlib.Path(storage.listing(str(model_dir / "checkpoints"))[-1])
    content = pickle.dumps(Harm(tmp_path / "harm"))
    manifest = json.loads((newest / "manifest.json").read_text())
    for name in manifest:
        (newest / name).write_bytes(content)
        manifest[name] = manifest_entry(newest / name)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    done = resume(root, model_dir)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Skipping a checkpoint" in done.stderr
    assert not (tmp_path / "harm").exists()


def test_a_keras_file_runs_nothing(root, tmp_path):
    """A Lambda layer holds Python code; weights beside it are read."""
    inputs = keras.Input((3,))
    outputs = keras.layers.Lambda(lambda x: (print("harm"), x)[1])(
        keras.layers.Dense(4, name="body")(inputs)
    )
    path = tmp_path / "lambda.keras"
    keras.Model(inputs, outputs).save(path)
    done = resume(root, tmp_path / "run", path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "harm" not in done.stdout
    # One whose weights are a pickle.
    crafted = io.BytesIO()
    with zipfile.ZipFile(crafted, "w") as archive:
        archive.writestr(
            "model.weights.h5", pickle.dumps(Harm(tmp_path / "harm"))
        )
    path.write_bytes(crafted.getvalue())
    done = resume(root, tmp_path / "other", path)
    assert done.returncode == 1
    assert "cannot be read as a Keras file" in done.stderr
    assert not (tmp_path / "harm").exists()
