"""What a check says of values that JSON has no number for."""

import json
import math

from trainer.cli.check_report import report_of_check
from trainer.runtime.report import Row, Section


def test_what_is_not_finite_is_null_and_named(tmp_path, capsys):
    rows = [Row("loss", math.nan), Row("rate", 2.5, "s")]
    line = {"program": Row("program", "step"), "live": Row("live", -math.inf)}
    sections = [Section("steps", rows, table=[line])]
    report_of_check(sections, ["a binding"], str(tmp_path))
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["steps"] == {
        "loss": None,
        "rate": 2.5,
        "lines": [{"program": "step", "live": None}],
    }
    verdict = found["verdict"]
    assert verdict["would_start"] is True
    named = [
        "steps: loss is nan, which is not finite.",
        "steps: live is -inf, which is not finite.",
    ]
    assert verdict["notes"] == ["a binding", *named]
    assert named[0] in capsys.readouterr().out
