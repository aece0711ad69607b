"""What all tests share."""

import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import pytest

from tests import object_store
from tests.starts import client

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# No test may depend on what another one has cached, or the user has.
_CACHE = tempfile.TemporaryDirectory()
os.environ["XDG_CACHE_HOME"] = _CACHE.name
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # Each of a thousand processes would compile TensorFlow and all else anew.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.path.join(_CACHE.name, "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption(
        "--plain-starts",
        action="store_true",
        help="start every Python process as ever, and none as a fork",
    )


# Handed out first, so that no process is left alone with one at the end.
LONG_FILES = (
    "trainer/loop/test_compiled_form.py",
    "conformance/test_conformance.py",
    "trainer/step/losses/test_as_fit.py",
    "trainer/step/metrics/test_metric_set.py",
    "faults/test_two_workers.py",
    "trainer/step/reductions/test_empty_replica.py",
    "frozen/test_numbers.py",
    "plugins/tpu/test_programs.py",
    "frozen/test_interrupted.py",
    "trainer/python/test_keras_surface.py",
    "trainer/python/test_objects.py",
    "faults/test_one_process.py",
    "trainer/data/test_static_batches.py",
    "trainer/step/reductions/test_all_gather.py",
    "trainer/step/reductions/test_uneven.py",
    "trainer/checkpoint/test_checkpoint_cuts.py",
    "plugins/tpu/test_tpu_check.py",
    "conformance/test_divergence.py",
    "experiments/test_experiments_codebook.py",
    "trainer/step/test_divergence_guard.py",
    "trainer/step/test_xla_replicas.py",
    "trainer/runtime/test_signals.py",
    "plugins/control_plane/test_joining.py",
    "trainer/strategy/test_stack_loop.py",
    "trainer/runtime/test_links.py",
    "trainer/step/losses/test_shapes.py",
    "test_end_to_end.py",
    "trainer/cli/test_cli_surroundings.py",
    "trainer/runtime/test_run_lock.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    places = {
        ROOT / "tests" / path: place for place, path in enumerate(LONG_FILES)
    }
    assert all(path.is_file() for path in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_configure(config):
    # A shell's background jobs ignore Ctrl-C, and so would all they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("plain_starts"):
        client.install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    if not config.getoption("plain_starts"):
        client.offer_servers()


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Garbage is looked for only in what a file's own tests have made.

    `keras.utils.clear_session` collects it each time. After a thousand tests
    that took most of the time of tests that call it.
    """
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session")
def objects_plugin(tmp_path_factory):
    """The compiled file system `objects://`, see `tests.object_store`."""
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("needs Linux and g++")
    path = object_store.build(tmp_path_factory.mktemp("objects"))
    os.environ["OBJECTS_PLUGIN"] = str(path)
    return path
