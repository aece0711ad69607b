"""The folder that stands for a run directory on a store."""

import os

import numpy as np
import tensorflow as tf

from trainer.checkpoint import storage
from trainer.tools.check.scratch import scratch_directory


def test_only_the_newest_usable_checkpoint_is_copied():
    model_dir = "ram://scratch/run"
    directory = f"{model_dir}/checkpoints"
    for step in (1, 2, 3):
        storage.save(directory, storage.Snapshot(step, {"a": np.ones(3)}, {}))
    tf.io.gfile.remove(f"{directory}/step_00000003/manifest.json")
    with scratch_directory(model_dir) as folder:
        copies = os.path.join(folder, "checkpoints")
        # The damaged one, so that a check warns of it as a run does.
        names = ["step_00000002", "step_00000003"]
        assert sorted(os.listdir(copies)) == names
        assert storage.load_newest(copies).step == 2
    assert not os.path.exists(folder)


def test_a_checkpoint_that_is_deleted_meanwhile(monkeypatch):
    model_dir = "ram://scratch/going_on"
    directory = f"{model_dir}/checkpoints"
    for step in (1, 2):
        storage.save(directory, storage.Snapshot(step, {"a": np.ones(3)}, {}))
    copy = tf.io.gfile.copy

    def delete_first(source, target):
        if "step_00000002" in source and tf.io.gfile.exists(source):
            storage.remove(f"{directory}/step_00000002")
        copy(source, target)

    monkeypatch.setattr(tf.io.gfile, "copy", delete_first)
    with scratch_directory(model_dir) as folder:
        found = storage.load_newest(os.path.join(folder, "checkpoints"))
        assert found.step == 1
