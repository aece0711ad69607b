import signal

import pytest

from tests.trainer.launch.launching import Launch
from tests.trainer.launch.simulation import Simulation


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(*tasks, **given):
        started.append(Launch(tmp_path, *tasks, **given))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def _fail(number, frame):
    raise AssertionError(f"signal {number} while nothing was launched")


@pytest.fixture
def simulation(tmp_path, capsys):
    """Launches of simulated tasks; signals to this process are handled."""
    # The tests may have been started with some signals ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.signal(number, _fail) for number in numbers}
    logs = tmp_path / "logs"
    logs.mkdir()
    yield Simulation(logs, capsys.readouterr)
    for number, handler in before.items():
        signal.signal(number, handler)
