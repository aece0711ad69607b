import keras
import numpy as np
import pytest

from trainer_experiments.models import conv_net


def test_size_is_that_of_the_tutorial():
    convolution = 3 * 3 * 1 * 32 + 32
    hidden = 13 * 13 * 32 * 64 + 64
    assert conv_net().count_params() == convolution + hidden + 64 * 10 + 10


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_under_mixed_precision(policy):
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = conv_net()
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
    assert model(np.zeros((1, 28, 28, 1))).dtype == "float32"
