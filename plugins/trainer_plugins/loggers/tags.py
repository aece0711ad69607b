"""The names under which TensorBoard shows values: a group, a name, a unit."""

from collections.abc import Collection, Mapping
from typing import Any

# The meaning of a tag, or of the beginning of one; the first that fits counts.
_DESCRIPTIONS = {
    "perf/steps_per_second": "Optimizer steps per second since the last log; "
    "a short batch counts as a part of one.",
    "perf/step_time_seconds": "Seconds per optimizer step since the last log.",
    "perf/examples_per_second": "Training examples per second since the last "
    "log. Evaluations and checkpoints do not count.",
    "perf/goodput": "The share, from 0 to 1, of the time since the run began "
    "that was spent in training steps.",
    "learning/learning_rate": "The optimizer's learning rate at this step.",
    "learning/gradient_norm": "The global norm of the gradient of this step, "
    "before any clipping.",
    "time/total_seconds": "Seconds since the run began.",
    "time/": "Seconds since the run began that were spent on this.",
    "weights/": "The weights of a variable at this step.",
    "operative_config": "The gin configuration that was used.",
}


def of_training(
    logs: Mapping[str, float], run: Any, *, rates: Collection[str]
) -> dict[str, float]:
    """A log of training, with the run's own measurements.

    Args:
        logs: the values by their names in `metrics.jsonl`.
        run: the call that trains.
        rates: which of the values are learning rates.
    """
    found = {
        f"learning/{name}" if name in rates else name: value
        for name, value in logs.items()
    }
    speed = found.pop("examples_per_second", 0.0)
    if speed:
        steps = speed / run.spec.batch_size
        found["perf/steps_per_second"] = steps
        found["perf/step_time_seconds"] = 1 / steps
        found["perf/examples_per_second"] = speed
    if run.parts.guard is not None:
        norm = run.parts.guard.newest_norm()
        found["learning/gradient_norm"] = norm
    for name, value in run.accounts.summary().items():
        is_share = name == "goodput"
        found["perf/goodput" if is_share else f"time/{name}_seconds"] = value
    return found


def description(tag: str, split: str) -> str:
    """TensorBoard's description of a tag.

    Args:
        tag: the name of a value.
        split: whose value it is.
    """
    for beginning, text in _DESCRIPTIONS.items():
        if tag.startswith(beginning):
            return text
    if split == "train":
        return (
            "Of the training steps since the last log, or logged by a callback."
        )
    return f"Of an evaluation of the split {split!r}."
