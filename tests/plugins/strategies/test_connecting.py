"""TensorFlow's own function connects, without Python's lock."""

import signal
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from trainer_plugins.strategies.connecting import lock_released


def test_the_lock_is_released_by_tensorflows_own_function():
    """What it refuses it refuses in the same words."""
    tf.constant(0)
    handle = context.context()._handle
    said = []
    with lock_released():
        assert pywrap_tfe.TFE_EnableCollectiveOps.__module__ == (
            "trainer_plugins.strategies.connecting"
        )
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            pywrap_tfe.TFE_EnableCollectiveOps(handle, b"no server")
        said.append(error.value.message)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        pywrap_tfe.TFE_EnableCollectiveOps(handle, b"no server")
    assert error.value.message in said


def test_a_limit_that_is_exceeded_shows_where_it_was():
    code = """
from trainer_plugins.strategies.connecting import bounded
import time
with bounded(0.5):
    pass
time.sleep(1.0)
with bounded(0.5):
    time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == -signal.SIGALRM
    assert "most recent call first" in done.stderr
    assert "line 8" in done.stderr
