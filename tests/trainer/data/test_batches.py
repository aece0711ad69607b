"""What strategies get to feed their replicas."""

import os
import subprocess
import sys

import pytest

# A dataset is dropped together with its iterator, while a thread of tf.data
# makes the next batch.
DROP = """
import sys
import numpy as np
import tensorflow as tf
from trainer.data import ArrayExamples, DatasetBatches, IndexedBatches
from trainer.data.batches import feeder

def slow(x):
    # Not a constant, which would be computed once.
    square = tf.fill([600, 600], x[0, 0])
    return x + 0 * tf.reduce_sum(square @ square)

ones = np.ones([64, 4], "float32")

def of_arrays():
    return IndexedBatches(ArrayExamples(ones, transform=slow), batch_size=4)

def of_users_options():
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.Dataset.from_tensor_slices(ones).batch(4).map(slow)
    return DatasetBatches(lambda: dataset.with_options(options), batch_size=4)

strategy = tf.distribute.MirroredStrategy(["cpu:0"])
batches = {"arrays": of_arrays, "options": of_users_options}[sys.argv[1]]()
for _ in range(5):
    pieces = feeder(batches, start=0, num_replicas=1, micro=1)
    iterator = iter(
        strategy.distribute_datasets_from_function(lambda _: pieces(range(1)))
    )
    next(iterator)
    del pieces, iterator
print("ended")
"""


@pytest.mark.parametrize("kind", ["arrays", "options"])
def test_a_distributed_iterator_may_outlive_its_dataset(kind):
    # glibc overwrites what is freed, so that a use of it does not go unseen.
    done = subprocess.run(
        [sys.executable, "-c", DROP, kind],
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_PERTURB_": "165"},
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
