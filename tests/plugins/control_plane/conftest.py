import pytest

from tests.plugins.control_plane.tasks import Cluster


@pytest.fixture
def cluster():
    """Makes clusters whose tasks end with the test."""
    made = []

    def make(workers, **options):
        made.append(Cluster(workers, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()
