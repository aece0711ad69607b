"""What TensorFlow does to a process while it connects, stood in for by C."""

import ctypes
import os
import signal
import time

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from trainer_plugins.strategies.connecting import lock_released, own_sigterm


def test_sigterm_is_ours_again_at_once():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    ignore = 1
    try:
        with own_sigterm():
            libc.signal(signal.SIGTERM, ignore)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert heard == [1]
            libc.signal(signal.SIGTERM, ignore)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert heard == [1, 1]
    finally:
        signal.signal(signal.SIGTERM, before)


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
