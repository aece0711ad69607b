"""Gives the run's seed to whatever a data plugin leaves without one."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

# There is no public way to read the global seed, or to restore it.
from tensorflow.python.eager import context


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes a data plugin return the same data each time it is called.

    An operation without a seed, such as `Dataset.shuffle`, depends on the
    global seed and on the number of such operations before it. Python's and
    NumPy's random numbers start from the seed, too. Everything is restored at
    the end.

    Args:
        seed: the run's.
    """
    ours = context.context()
    # `_rng` counts the operations without a seed; it exists once a seed is set.
    before = ours._seed, getattr(ours, "_rng", None)
    python, numpy = random.getstate(), np.random.get_state()
    # This also restarts the count of operations without a seed.
    tf.random.set_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # It takes 32 bits.
    try:
        yield
    finally:
        ours._seed, ours._rng = before
        random.setstate(python)
        np.random.set_state(numpy)
