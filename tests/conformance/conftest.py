"""Runs the worker once for each strategy, and hands out its results."""

import collections
import functools
import re

import pytest

from . import running

STRATEGIES = [
    "default",
    "mirrored:3",
    "multi_worker_mirrored@2",
    "parameter_server@1+2",
]
MORE_STRATEGIES = [
    "one_device",
    "central_storage:2",
    "mirrored:2",
    "mirrored:4",
    "mirrored:8",
    "central_storage:4",
    "multi_worker_mirrored@3",
]
# A cluster's cases cost several times as much: in the ordinary set it runs
# those that what it does differently could change, and in the long set all.
CLUSTER_CASES = ("moving_average", "metrics_in_order", "masked_loss")
# Several devices of one process go on as `tests/frozen` has them do, and are
# held to the reference's weights by "moving_average".
ELSEWHERE = {("mirrored:3", "resume"), ("mirrored:3", "parity")}
# Whose checkpoints are restored, and by whom; the long set adds the others.
SAVING = [*STRATEGIES, "one_device", "central_storage:2"]
RESTORING = ["default"]


def pytest_addoption(parser):
    parser.addoption(
        "--conformance-strategy",
        action="append",
        help="run against NAME[:DEVICES][@WORKERS[+SERVERS]] (repeatable), "
        "such as mirrored:2 for two virtual devices",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes")
    config.addinivalue_line("markers", "case(name): reads a case's results")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("conformance_strategy", None):
        return
    for item in items:
        if (case := item.get_closest_marker("case")) is None:
            continue
        strategy, name = item.callspec.params["results"], case.args[0]
        if (strategy, name) in ELSEWHERE or (
            "@" in strategy and name not in CLUSTER_CASES
        ):
            item.add_marker(pytest.mark.long)


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.getoption("conformance_strategy", None)
    if "results" in metafunc.fixturenames:
        names = chosen or _with_long(STRATEGIES, MORE_STRATEGIES)
        metafunc.parametrize("results", names, indirect=True)
    if "restoring" in metafunc.fixturenames:
        more = [name for name in SAVING if name not in RESTORING]
        names = chosen or _with_long(RESTORING, more)
        metafunc.parametrize("restoring", names)


def _with_long(names, more):
    marked = [pytest.param(name, marks=pytest.mark.long) for name in more]
    return [*names, *marked]


@pytest.fixture(scope="session")
def run_once(request, tmp_path_factory):
    """Runs a strategy's cases the first time it is asked for."""
    # And what is restored elsewhere.
    wanted = collections.defaultdict(lambda: {"moving_average"})
    for item in request.session.items:
        if (case := item.get_closest_marker("case")) is not None:
            wanted[item.callspec.params["results"]].add(case.args[0])

    @functools.cache
    def run(strategy):
        name = re.sub(r"\W", "_", strategy)
        directory = tmp_path_factory.mktemp(name)
        only = ("--only", *sorted(wanted[strategy]))
        return running.run(strategy, str(directory), *only)

    return run


@pytest.fixture
def results(request, run_once):
    """What the worker computed under the strategy of this test."""
    return run_once(request.param)


@pytest.fixture
def saving(request, run_once):
    """What the worker computed and saved under each strategy in question."""
    chosen = request.config.getoption("conformance_strategy", None)
    is_long = request.node.get_closest_marker("long") is not None
    names = chosen or (SAVING if is_long else STRATEGIES)
    return [run_once(name) for name in names]
