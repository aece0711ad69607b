"""Each test's processes are gone when it is over."""

import pytest

from tests.faults.runs import Runs


@pytest.fixture
def runs(tmp_path):
    """The runs of one test, in one run directory."""
    made = Runs(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """Run directories that nothing has happened to, made at first use."""
    made = {}

    def find(*flags, environ=None, **counts):
        key = (flags, tuple(sorted(counts.items())))
        if key not in made:
            made[key] = Runs(tmp_path_factory.mktemp("undisturbed"))
            one = made[key]
            if counts:
                started = one.tasks(*flags, **counts).values()
            else:
                started = [one.train(*flags)]
            for process in started:
                process.must_end(0)
        return made[key].model_dir

    yield find
    for one in made.values():
        one.end()
