"""What all tests share."""

import os
import pathlib
import signal

import pytest

from tests.starts import client

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption(
        "--plain-starts",
        action="store_true",
        help="start every Python process as ever, and none as a fork",
    )


def pytest_configure(config):
    # A shell's background jobs ignore Ctrl-C, and so would all they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("plain_starts"):
        client.install()


@pytest.fixture
def plain_starts():
    """Processes that this test starts are no forks, see `tests.starts`."""
    with client.plain_starts():
        yield


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
