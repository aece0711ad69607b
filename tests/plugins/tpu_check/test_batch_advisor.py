"""`--fit_batch`: how the search goes on, and what it says."""

import re
import types

import pytest

from tests.plugins.tpu_check.test_tpu_check import (
    check_odd,
    needs_compiler,
    report,
)
from trainer import UserError
from trainer_plugins.tpu_check import batch_advisor
from trainer_plugins.tpu_check.compiling import Compiled, DoesNotFit
from trainer_plugins.tpu_check.topology import Topology

REPLICAS, MICRO = 4, 3


class Programs:
    """A step whose program is nothing but the rows of a micro-batch."""

    smallest, micro_batches = REPLICAS * MICRO, MICRO

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def training(self, batch_size):
        rows = batch_size // self.smallest
        return types.SimpleNamespace(name=rows, replicas=REPLICAS)


def advise(monkeypatch, *, most, batch_size=12 * 32):
    """Seeks with a compiler for which `most` rows fit."""

    def compile_for(topology, lowered, *, name, replicas):
        if name > most:
            raise DoesNotFit("too large", "99G")
        # Quadratic, as attention is: the first guess is too high.
        temp = int(topology.chip.hbm_bytes * (name / most) ** 2)
        return Compiled(0, 0, 0, temp, 0, 1.0, 1.0, 1, 0)

    monkeypatch.setattr(batch_advisor, "compile_for", compile_for)
    monkeypatch.setattr(batch_advisor, "lower", lambda program: program)
    return batch_advisor.advise(Programs(batch_size), Topology("v5e", "2x2"))


@pytest.mark.parametrize("first", [1, 32, 2048])
def test_a_replica_has_all_its_micro_batches(monkeypatch, first):
    found = advise(monkeypatch, most=300, batch_size=12 * first)
    values = {row.name: row.value for row in found.rows}
    assert values == {"per replica": 256 * MICRO, "batch_size": 256 * 12}
    assert "in each of 3 micro-batches" in found.rows[0].note
    lines = [
        {name: row.value for name, row in one.items()} for one in found.table
    ]
    for line in lines:
        assert line["per replica"] * REPLICAS == line["batch_size"]
        assert line["fits"] == (line["per replica"] <= 300 * MICRO)
    assert {256 * MICRO, 512 * MICRO} <= {one["per replica"] for one in lines}


def test_not_even_one_example_fits(monkeypatch):
    with pytest.raises(UserError, match="not even one example"):
        advise(monkeypatch, most=0.5)


@needs_compiler
@pytest.mark.long
def test_the_flag_says_what_fits_where_the_batch_does_not(tmp_path):
    arguments = ("--fit_batch", "--model_dir=run")
    text = "numbers.size = 262144\n"
    done = check_odd(
        tmp_path, "large", *arguments, "--batch_size=262144", text=text
    )
    assert done.returncode == 2
    assert "does not fit into the memory" in done.stderr
    advice = re.search(r"largest that fits is batch_size = (\d+)", done.stderr)
    best = int(advice[1])
    done = check_odd(
        tmp_path, "large", *arguments, f"--batch_size={best}", text=text
    )
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "run")["largest_batch_on_v5e_2x2"]
    assert found["batch_size"] == best == 4 * found["per_replica"]
