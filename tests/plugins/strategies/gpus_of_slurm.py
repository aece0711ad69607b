"""Which GPUs a task of Slurm takes, from its environment alone."""

import os
import types

from trainer.strategy.cluster import slurm
from trainer_plugins.strategies import devices


def taken(environ, monkeypatch):
    """The GPUs of its node that a task takes, by Slurm's numbers."""
    named = environ["CUDA_VISIBLE_DEVICES"].split(",")
    seen = list(range(len(named)))

    def hide_others(found, kind):
        seen[:] = found

    # TensorFlow numbers what is named from 0.
    config = types.SimpleNamespace(
        get_visible_devices=lambda kind: list(seen),
        set_visible_devices=hide_others,
    )
    with monkeypatch.context() as patch:
        patch.setattr(devices.tf, "config", config)
        patch.setattr(os, "environ", environ)
        devices.take_share(slurm.resolve(environ), ["worker"])
    return [named[i] for i in seen]
