"""A save to an object store that ends after any change harms nothing."""

import ctypes
import os
import shutil

import pytest

from tests import object_store
from tests.trainer.checkpoint.cut_saves import SCENARIOS, snapshot
from trainer.plugin_api import storage

pytestmark = pytest.mark.long

DIRECTORY = "objects://bucket/run/checkpoints"
# What is newest afterwards: it was there before, or it is the new one.
EXPECTED = {
    "save_and_prune": [(20, 20.0), (30, 3.0)],
    "save_again": [(20, 20.0), (20, 3.0)],
    "first_save": [(20, 20.0)],
    "start_again": [(20, 20.0), (30, 3.0)],
}


@pytest.fixture(scope="module")
def store(objects_plugin):
    object_store.register()
    return ctypes.CDLL(str(objects_plugin))


@pytest.fixture(params=["1", "0"], ids=["markers", "no markers"])
def root(request, tmp_path, store, monkeypatch):
    monkeypatch.setenv("OBJECTS_MARKERS", request.param)
    (tmp_path / "bucket").mkdir()
    monkeypatch.setenv("OBJECTS_ROOT", str(tmp_path))
    yield tmp_path
    store.objects_allow(-1)


def newest(directory=DIRECTORY):
    found = storage.load_newest(directory)
    if found is None:
        return None
    values = {float(v) for a in found.arrays.values() for v in a.ravel()}
    assert values == {found.host["value"]}
    return found.step, found.host["value"]


def cut_after(store, count, scenario):
    """Whether the scenario came to its end."""
    store.objects_allow(count)
    try:
        SCENARIOS[scenario](DIRECTORY)
    except OSError:
        return False
    finally:
        store.objects_allow(-1)
    return True


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_checkpoint_is_complete_or_absent(root, store, scenario):
    for step in (10, 20):
        storage.save(DIRECTORY, snapshot(step, float(step)))
    start = root.with_name(f"{root.name}_start")
    shutil.copytree(root, start)
    cuts, done = 0, False
    while not done:
        shutil.rmtree(root)
        shutil.copytree(start, root)
        done = cut_after(store, cuts, scenario)
        assert newest() in EXPECTED[scenario], (cuts, os.listdir(root))
        if scenario == "first_save":
            new = newest(f"{DIRECTORY}/new")
            assert new == (20, 3.0) if done else new in (None, (20, 3.0))
        # The next attempt tidies up, loses nothing, and can save again.
        before = newest()
        storage.remove_leftovers(DIRECTORY)
        assert newest() == before
        for path in storage.listing(DIRECTORY):
            assert storage.find_fault(path) is None
        storage.save(DIRECTORY, snapshot(20, 7.0))
        steps = [storage.step_of(p) for p in storage.listing(DIRECTORY)]
        assert len(steps) == len(set(steps))
        cuts += 1
    # Fewer would mean that the cuts have missed the save.
    assert cuts > 8
