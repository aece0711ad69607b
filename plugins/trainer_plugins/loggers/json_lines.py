"""The logger JsonLines: writes metrics.jsonl, one object per line."""

import json
import math
from collections.abc import Sequence

from trainer.plugin_api import Entry, Media, configurable, schema
from trainer_plugins.loggers.line_file import Key, LineFile

_LINE = schema.record({"step": schema.Number})


@configurable(module="trainer_plugins.callbacks")
class JsonLines(LineFile):
    """Appends each log of the train and the eval split to `metrics.jsonl`.

    A line is `{"step": 100, "split": "train", "loss": 0.12, ...}`. It is
    strict JSON: a value that is not finite is written as `null`. Only numbers
    are written.

    See `LineFile` for how lines are handled when a run is killed and resumed. A
    side-car evaluator writes such lines to `metrics_evaluator.jsonl`.
    """

    file_name = "metrics.jsonl"
    evaluator_file_name = "metrics_evaluator.jsonl"

    def as_text(self, entries: Sequence[Entry]) -> str:
        """See `LineFile.as_text`."""
        return "".join(map(_line, entries))

    def key_of(self, line: bytes) -> Key | None:
        """See `LineFile.key_of`."""
        try:
            found = json.loads(line)
            _LINE(found, "it")
        except (ValueError, RecursionError):
            return None
        # A metric of this name is a number.
        return Key(
            found["step"], found.get("split"), found.get("final") is True
        )


def _line(entry: Entry) -> str:
    """The numbers of an entry; NaN and infinities become `null`."""
    values = {
        name: float(value) if math.isfinite(value) else None
        for name, value in entry.values.items()
        if not isinstance(value, Media)
    }
    key = {"step": int(entry.step), "split": entry.split}
    if entry.final:
        key["final"] = True
    # Twice: first so that they come first, last so that they win over metrics
    # of these names.
    return json.dumps(key | values | key, allow_nan=False) + "\n"
