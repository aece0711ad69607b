"""The probe refuses what breaks the promise, and nothing else.

All of the models were written without a look at what the probe says of them.
"""

import json

import pytest

from tests.helpers import run_module
from tests.probe.broken import BROKEN
from tests.probe.sound import SOUND

FEW = [
    "output: gram matrix",
    "state: variance",
    "added: norm",
    "loss: contrastive",
    "layers: batch normalization",
    "layers: dropout",
    "loss: a step of one's own",
]
HELPS = {
    "output": "Let it reduce over other axes than the first",
    "state": "aggregation='sum'",
    "added": "Trainer.added_losses",
    "loss": "Trainer.global_loss",
}


def outcomes(directory, root, names=()):
    run_module("tests.probe.worker", directory, *names, root=root)
    lines = (directory / "outcomes.jsonl").read_text().splitlines()
    return {name: rest for name, *rest in map(json.loads, lines)}


def test_what_breaks_the_promise_is_refused_with_what_helps(tmp_path, root):
    found = outcomes(tmp_path, root, FEW)
    assert found.keys() == set(FEW)
    for name, (outcome, said) in found.items():
        assert outcome == ("refused" if name in BROKEN else "silent"), said
        if name in BROKEN:
            assert HELPS[name.partition(":")[0]] in said


@pytest.mark.long
def test_few_of_sixty_are_silent_and_none_refused_without_reason(
    tmp_path, root
):
    found = outcomes(tmp_path, root)
    assert len(BROKEN) == 60
    assert len(SOUND) == 62
    silent = [name for name in BROKEN if found[name][0] == "silent"]
    wrong = [name for name in SOUND if found[name][0] in ("refused", "failed")]
    assert len(silent) <= 5, silent
    assert len(wrong) <= 1, [(name, found[name]) for name in wrong]
