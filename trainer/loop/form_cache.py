"""A cache of measured forms: equal runs on a machine get equal forms.

It is in `forms` of the cache directory, see `trainer.runtime.user_cache`.
"""

import contextlib
import hashlib
import json
import math
import os
import platform

import keras
import tensorflow as tf
from pydantic import TypeAdapter, ValidationError

from trainer.data import Batches
from trainer.errors import UserError
from trainer.loop.form_timing import Timing
from trainer.loop.running_trainer import RunningTrainer
from trainer.runtime import fingerprints
from trainer.runtime.files import read, write_whole
from trainer.runtime.user_cache import cache_path
from trainer.step.keras.private import all_layers

_ADAPTER = TypeAdapter(Timing)


def key(trainer: RunningTrainer, batches: Batches) -> str:
    """A hash of what the speed of a run's steps depends on.

    That is the machine, the versions, the code, the model, its optimizers, and
    the shapes of the batches: not the values of hyperparameters.
    """
    parts = trainer.parts
    facts = {
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
        "code": fingerprints.code(),
        "devices": trainer.plugin.devices(),
        "strategy": trainer.plugin.name,
        "versions": [
            tf.__version__,
            keras.__version__,
            platform.python_version(),
        ],
        "trainer": [
            f"{type(trainer).__module__}.{type(trainer).__qualname__}",
            *sorted(trainer.spec.overridden),
        ],
        "layers": [
            [type(layer).__qualname__, layer.compute_dtype]
            for layer in all_layers(trainer.model)
        ],
        "variables": [
            [str(v.shape), str(v.dtype)] for v in trainer.model.variables
        ],
        "optimizers": [
            type(one).__qualname__ for one in parts.optimizers.values()
        ],
        "step": [
            trainer.accumulation_steps,
            parts.ema is not None,
            parts.loss_scale is not None,
            parts.watch is not None,
            trainer.recompute,
        ],
        "metrics": sorted(parts.metrics.measures),
        "batches": [
            str(batches.element_spec),
            batches.batch_size,
            batches.last_size,
        ],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def load(name: str) -> Timing | None:
    """What an earlier run has stored; `None` if there is nothing of use."""
    path = _path(name)
    try:
        if path is None or not os.path.isfile(path):
            return None
        found = _ADAPTER.validate_json(read(path))
    # It is a cache: whatever is wrong with it, the forms are timed again.
    except (OSError, ValidationError):
        return None
    rates = found.steps_per_second
    is_sound = all(0.0 < rate < math.inf for rate in rates.values())
    return found if is_sound and found.best in rates else None


def store(name: str, timing: Timing) -> None:
    """Stores what was measured; a cache that cannot be written is no error."""
    path = _path(name)
    if path is None:
        return
    with contextlib.suppress(OSError, UserError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, _ADAPTER.dump_json(timing))


def _path(name: str) -> str | None:
    return cache_path("forms", f"{name}.json")
