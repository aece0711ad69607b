"""How a report writes its figures."""

import pytest

from trainer.runtime.report import show


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "bytes", "0 B"),
        (999.4, "bytes", "999 B"),
        (999.6, "bytes", "1 kB"),
        (999_700_000, "bytes", "1 GB"),
        (-999_700_000, "bytes", "-1 GB"),
        (1_234_000_000, "bytes/s", "1.23 GB/s"),
        (2.3e15, "FLOP", "2.3 PFLOP"),
        (float("inf"), "FLOP", "inf PFLOP"),
        (float("nan"), "bytes", "nan B"),
        (0.9999, "s", "1 s"),
        (0.0123, "s", "12.3 ms"),
        (119.96, "s", "2 min"),
        (7200, "s", "2.0 h"),
        (None, "bytes", "not known"),
    ],
)
def test_a_figure(value, unit, shown):
    assert show(value, unit) == shown
