"""TensorFlow's own function connects, without Python's lock."""

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
