"""What a check says of values that JSON has no number for."""

import json
import math

from trainer.runtime.report import Row, Section
from trainer.tools.check.mode import Check


def test_what_is_not_finite_is_null_and_named(tmp_path, capsys):
    rows = [Row("loss", math.nan), Row("rate", 2.5, "s")]
    rows.append(Row("live", -math.inf))
    sections = [Section("steps", rows)]
    check = Check()
    check.sections = sections
    check.report(["a binding"], str(tmp_path))
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["steps"] == {"loss": None, "rate": 2.5, "live": None}
    verdict = found["verdict"]
    assert verdict["would_start"] is True
    named = [
        "steps: loss is nan, which is not finite.",
        "steps: live is -inf, which is not finite.",
    ]
    assert verdict["notes"] == ["a binding", *named]
    assert named[0] in capsys.readouterr().out


def test_a_report_that_is_a_link_hides_no_failure(tmp_path, caplog):
    other = tmp_path / "other"
    other.write_text("dear to somebody")
    (tmp_path / "check.json").symlink_to(other)
    Check().failed("the loss is wrong", str(tmp_path))
    assert "check.json cannot be written" in caplog.text
    assert other.read_text() == "dear to somebody"
