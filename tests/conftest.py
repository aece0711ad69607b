"""What all tests share."""

import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root():
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def mnist_dir():
    """Real MNIST digits, where they lie beside the checkout."""
    path = ROOT.parent / "shared" / "data" / "mnist"
    if not path.is_dir():
        pytest.skip("no ../shared/data/mnist beside the checkout")
    return str(path)
