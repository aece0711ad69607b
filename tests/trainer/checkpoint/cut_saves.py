"""Does one thing to checkpoints again and again, killed ever later.

    python cut_saves.py <library> <folder> <scenario> ...

`library` is the compiled cut_after.c, which is preloaded too. `folder` has a
folder for each scenario, and there is `start/`, which each attempt finds as
`<n>/`, and is killed after its n-th operation there; `0/` is not cut, and
`0.log` holds its operations. Each attempt is a process of its own, forked
before TensorFlow has any threads.
"""

import ctypes
import gc
import os
import shutil
import signal
import sys

import numpy as np

from trainer.plugin_api import storage


def snapshot(step, value):
    arrays = {
        f"model/{i:04d}": np.full((64, 64), value, "float32") for i in range(3)
    }
    return storage.Snapshot(step, arrays, {"value": value, "variables": {}})


def save_and_prune(directory):
    storage.save(directory, snapshot(30, 3.0))
    storage.remove(os.path.join(directory, "step_00000010"))


def save_again(directory):
    storage.save(directory, snapshot(20, 3.0))


def first_save(directory):
    storage.save(os.path.join(directory, "new"), snapshot(20, 3.0))


def start_again(directory):
    storage.remove_leftovers(directory)
    storage.save(directory, snapshot(30, 3.0))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (save_and_prune, save_again, first_save, start_again)
}


def attempt(library, scenario, folder, number):
    """Forks; whether the scenario came to its end uncut."""
    directory = os.path.join(folder, str(number))
    shutil.copytree(os.path.join(folder, "start"), directory, symlinks=True)
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(library).cut_after(
                ctypes.c_long(number),
                directory.encode(),
                f"{directory}.log".encode(),
            )
            SCENARIOS[scenario](directory)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def main(library, folder, *scenarios):
    # Else each child would get a copy of what its garbage collection touches.
    gc.freeze()
    for scenario in scenarios:
        own = os.path.join(folder, scenario)
        assert attempt(library, scenario, own, 0)
        number = 1
        while not attempt(library, scenario, own, number):
            number += 1
        print(scenario, number - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
