"""Seeds the random operations of a data plugin that have no seed."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

# The global seed can be read and restored by private names only.
from tensorflow.python.eager import context


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes a data plugin return the same each time it is called.

    An operation without a seed, such as `Dataset.shuffle`, derives it from the
    global seed and the number of such operations before it. Python's and
    NumPy's generators are seeded, too. All of this is restored on exit.

    Args:
        seed: the run's seed.
    """
    ours = context.context()
    before = ours._seed, getattr(ours, "_rng", None)
    python, numpy = random.getstate(), np.random.get_state()
    # This also restarts TensorFlow's sequence of operation seeds.
    tf.random.set_seed(seed)
    random.seed(seed)
    # NumPy accepts 32 bits only.
    np.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        ours._seed, ours._rng = before
        random.setstate(python)
        np.random.set_state(numpy)
