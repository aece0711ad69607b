import pytest

from tests.plugins.clusters.meetings import Task


@pytest.fixture(autouse=True)
def no_task_is_left():
    yield
    while Task.started:
        process = Task.started.pop()
        process.kill()
        process.communicate()
