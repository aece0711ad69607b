"""What makes a run go on exactly where it was: capture and restore."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer.checkpoints import Snapshot, load, load_newest
from trainer.errors import UserError
from trainer.step.keras_hooks import native

if TYPE_CHECKING:
    from trainer.trainer import Trainer

# The groups of variables that an evaluation looks at.
EVALUATED = ("model", "ema")


def capture(trainer: "Trainer") -> Snapshot:
    """Takes a snapshot of a run between two host loops.

    The tensors share memory with the variables until these change:
    TensorFlow copies a variable that is written while somebody reads it.

    Args:
        trainer: the trainer, with its loop if one is running.
    """
    variables = _variables(trainer)
    arrays: dict[str, Any] = {
        _key(group, i): _on_host(variable)
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
    host: dict[str, Any] = {
        "variables": {
            group: [_describe(variable) for variable in members]
            for group, members in variables.items()
        }
    }
    loop = trainer.loop
    if loop is not None:
        host["callbacks"] = loop.callbacks.states()
        host["logs"] = loop.logs
        host["totals"] = {}
        for name, totals in loop.totals.items():
            state = totals.state()
            host["totals"][name] = {key: len(state[key]) for key in state}
            for key, values in state.items():
                for i, value in enumerate(values):
                    arrays[f"totals/{name}/{key}/{i}"] = value
    return Snapshot(trainer.step, arrays, host)


def restore(
    trainer: "Trainer",
    snapshot: Snapshot,
    *,
    groups: Collection[str] | None = None,
) -> None:
    """Puts a snapshot back into a trainer that was built the same way.

    Args:
        trainer: the trainer, with its loop if one is about to run.
        snapshot: from any strategy.
        groups: restores these groups of variables and the step, and nothing
            else, such as `EVALUATED`; `None` means all there is.

    Raises:
        UserError: model, optimizer or averages have another structure.
    """
    variables = {
        group: members
        for group, members in _variables(trainer).items()
        if groups is None or group in groups
    }
    for group, members in variables.items():
        _check_structure(group, members, snapshot.host["variables"])
    for group, members in variables.items():
        for i, variable in enumerate(members):
            variable.assign(snapshot.arrays[_key(group, i)])
    trainer.step = snapshot.step
    # A parameter-server worker that died may have counted a step twice.
    trainer.parts.step.assign(snapshot.step)
    loop = trainer.loop
    if loop is None or groups is not None:
        return
    loop.callbacks.load_states(snapshot.host.get("callbacks", {}))
    loop.logs = dict(snapshot.host.get("logs", {}))
    for name, counts in snapshot.host.get("totals", {}).items():
        loop.totals[name].load_state(
            {
                key: [
                    snapshot.arrays[f"totals/{name}/{key}/{i}"]
                    for i in range(count)
                ]
                for key, count in counts.items()
            }
        )


def restore_newest(trainer: "Trainer", directory: str) -> bool:
    """Restores the newest usable checkpoint, if there is one.

    Args:
        trainer: see `restore`.
        directory: holds the run's checkpoints.

    Returns:
        Whether there was one.
    """
    snapshot = load_newest(directory)
    if snapshot is None:
        return False
    restore(trainer, snapshot)
    return True


def initialize_from(trainer: "Trainer", path: str) -> None:
    """Starts a new run with the model of another one.

    Variables are matched by order where all shapes are equal, else by path
    and shape, so that a part of a model will do; what was and what was not
    found is logged.

    Args:
        trainer: its model is filled; optimizer and step stay new.
        path: a checkpoint, or a directory of checkpoints, or a run directory.

    Raises:
        UserError: there is no checkpoint, or nothing in it fits.
    """
    snapshot = _find(path)
    theirs = snapshot.host["variables"]["model"]
    members = _variables(trainer)["model"]
    ours = [_describe(variable) for variable in members]
    if [_shape(entry) for entry in ours] == [_shape(e) for e in theirs]:
        # The same model: Keras may have counted its layers' names up.
        places = dict(enumerate(range(len(ours))))
    else:
        there = {(_inner(e), _shape(e)): i for i, e in enumerate(theirs)}
        places = {
            i: there[_inner(entry), _shape(entry)]
            for i, entry in enumerate(ours)
            if (_inner(entry), _shape(entry)) in there
        }
    for i, place in places.items():
        members[i].assign(snapshot.arrays[_key("model", place)])
    missing = [e["path"] for i, e in enumerate(ours) if i not in places]
    if trainer.parts.ema is not None:
        trainer.parts.ema.restart()
    if len(missing) == len(members):
        raise UserError(
            f"init_from = {path!r}: no variable there has a path and shape "
            f"of this model. It holds: {_some(theirs)}; the model has: "
            f"{_some(ours)}."
        )
    logging.info(
        "Initialized %d of %d model variables from %s. Not there: %s",
        len(members) - len(missing),
        len(members),
        path,
        ", ".join(missing) or "none",
    )


def _shape(entry: dict[str, Any]) -> tuple[int, ...]:
    return tuple(entry["shape"])


def _inner(entry: dict[str, Any]) -> str:
    """A variable's path below the model, whose own name may be a number."""
    return str(entry["path"].partition("/")[2] or entry["path"])


def _find(path: str) -> Snapshot:
    if tf.io.gfile.exists(f"{path}/manifest.json"):
        return load(path)
    snapshot = load_newest(path) or load_newest(f"{path}/checkpoints")
    if snapshot is None:
        raise UserError(
            f"init_from = {path!r} holds no usable checkpoint. Name a run "
            "directory, its checkpoints/, or one of those."
        )
    return snapshot


def _variables(trainer: "Trainer") -> dict[str, list[Any]]:
    """Every variable of a run, in groups that a checkpoint keeps apart."""
    parts = trainer.parts
    groups: dict[str, list[Any]] = {
        "model": list(parts.model.variables),
        "step": [parts.step],
    }
    for name, optimizer in parts.optimizers.items():
        groups[f"optimizer/{name}"] = list(optimizer.variables)
    if parts.ema is not None:
        groups["ema"] = list(parts.ema.variables)
    if parts.loss_scale is not None:
        groups["loss_scale"] = list(parts.loss_scale.variables)
    return groups


def _key(group: str, number: int) -> str:
    """Numbered: Keras counts layer names up within a process."""
    return f"{group}/{number:04d}"


def _describe(variable: Any) -> dict[str, Any]:
    return {
        "path": getattr(variable, "path", variable.name),
        "shape": [int(size) for size in variable.shape],
    }


def _on_host(variable: Any) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.identity(native(variable).read_value())


def _check_structure(
    group: str, members: list[Any], stored: dict[str, list[dict[str, Any]]]
) -> None:
    ours = [_describe(variable) for variable in members]
    theirs = stored.get(group, [])
    shapes = [entry["shape"] for entry in ours]
    if shapes == [entry["shape"] for entry in theirs]:
        return
    differing = next(
        (
            f"{a['path']} has shape {a['shape']}, there {b['shape']}"
            for a, b in zip(ours, theirs, strict=False)
            if a["shape"] != b["shape"]
        ),
        f"{len(ours)} variables, there {len(theirs)}",
    )
    raise UserError(
        f"The checkpoint is of another {group.split('/')[0]}: {differing}. "
        "Choose another --model_dir, or start from it with --init_from."
    )


def _some(entries: list[dict[str, Any]]) -> str:
    shown = [f"{entry['path']} {entry['shape']}" for entry in entries[:3]]
    return ", ".join(shown) + (", ..." if len(entries) > 3 else "")


def as_numpy(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """The arrays of a snapshot, to compare runs bit by bit."""
    return {name: np.asarray(value) for name, value in snapshot.arrays.items()}
