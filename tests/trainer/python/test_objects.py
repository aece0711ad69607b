"""Objects that hold more than their configuration: the same as in `fit`."""

import pytest

from tests.conformance import running
from tests.trainer.python import object_cases

MODULE = "tests.trainer.python.objects_worker"
STRATEGIES = (
    *("default", "one_device", "mirrored:1", "mirrored:2", "mirrored:3"),
    *("central_storage:2", "multi_worker_mirrored@2", "parameter_server@1+1"),
)
# These work on one device only.
REFUSED = {
    "use_ema": "Use Trainer.ema_momentum",
    "accumulation": "Use Trainer.accumulation_steps",
    "multi": "Set strategy to 'default'",
    "exclude_variables": "a copy of it would exclude different ones",
}


# One of each way to go over.
QUICK = (
    "batch_norm",
    *("normalization_not_built", "text", "attributes", "own_variables"),
    *("exclude_variables", "own_attribute", "lookahead", "use_ema"),
)


@pytest.mark.parametrize(
    ("strategy", "names"),
    [("default", QUICK[::2]), ("mirrored:2", QUICK[1::2])],
)
def test_what_an_object_holds_is_trained_or_goes_over(
    strategy, names, tmp_path
):
    check(strategy, tmp_path, names)


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_an_object_holds_is_trained_and_saved(strategy, tmp_path):
    check(strategy, tmp_path, object_cases.ALL)


def check(strategy, directory, names):
    options = f"--extra={MODULE}:run", "--only", *names
    found = running.run(strategy, str(directory), *options)
    for case in names:
        if case in REFUSED and strategy not in ("default", "one_device"):
            assert REFUSED[case] in str(found[case])
            continue
        moved, away, saved = found[case]
        assert moved > 0.05, case
        assert away < 1e-6, case
        assert saved < 1e-5, case
