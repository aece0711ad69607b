import pytest

from tests.plugins.control_plane.rendezvous_tasks import tasks_end


@pytest.fixture(autouse=True)
def no_task_is_left():
    with tasks_end():
        yield
