import pytest

from tests.trainer.launch.launching import Launch


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
