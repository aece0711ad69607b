"""The run's seed as that of everything a data plugin leaves unseeded."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

# No public name tells which global seed is set, or sets it back.
from tensorflow.python.eager import context


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Lets a data plugin make the same each time it is called.

    An operation without a seed, such as `Dataset.shuffle`, takes the global
    seed and how many such operations there have been before. Python's and
    NumPy's random numbers begin with the seed, too. All is put back in the
    end.

    Args:
        seed: the run's.
    """
    ours = context.context()
    before = ours._seed, getattr(ours, "_rng", None)
    python, numpy = random.getstate(), np.random.get_state()
    tf.random.set_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        ours._seed, ours._rng = before
        random.setstate(python)
        np.random.set_state(numpy)
