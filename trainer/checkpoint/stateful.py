"""What makes a run go on exactly where it was: capture and restore."""

import contextlib
import copy
import hashlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging

from trainer.checkpoint import keras_callbacks
from trainer.checkpoint.contents import check, key_of, totals_by_replica
from trainer.checkpoint.schema import Misfit
from trainer.checkpoint.storage import Snapshot, newest_first
from trainer.errors import UserError
from trainer.loop import loop_state
from trainer.step.model.keras_private import native

if TYPE_CHECKING:
    from trainer.loop.loop import Loop
    from trainer.trainer import Trainer

# The groups of variables that an evaluation looks at.
EVALUATED = ("model", "ema")
# A run may get a guard later, when it is seen to need one.
GUARD = "guard"
# What a state may lead to that no check has foreseen.
_MISFITS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,  # And so `Misfit`.
)


def capture(trainer: "Trainer", *, over: bool = False) -> Snapshot:
    """Takes a snapshot of a run between two host loops.

    The tensors share memory with the variables until these change:
    TensorFlow copies a variable that is written while somebody reads it.
    All else is copied: the run goes on while the snapshot is written.

    Args:
        trainer: the trainer, with its loop if one is running.
        over: whether the run has come to its end.
    """
    variables = _variables(trainer)
    arrays: dict[str, Any] = {
        key_of(group, i): _on_host(variable)
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
    host: dict[str, Any] = {
        "variables": {
            group: [describe(variable) for variable in members]
            for group, members in variables.items()
        }
    }
    untracked = trainer.parts.untracked.state()
    host["untracked"] = {
        key: [int(size) for size in value.shape]
        for key, value in untracked.items()
    }
    arrays |= {f"untracked/{key}": v for key, v in untracked.items()}
    host["fingerprints"] = dict(trainer.plugin.facts)
    host["metrics_add_up"] = trainer.parts.metrics.trial()
    loop = trainer.loop
    if loop is not None:
        host["callbacks"], of_callbacks = keras_callbacks.split(
            loop.callbacks.states()
        )
        for name, array in of_callbacks.items():
            arrays[f"callbacks/{name}"] = np.array(array)
        reports = loop.reports
        host["logs"] = reports.logs
        host["loop"] = loop_state.capture(loop)
        host["times"] = {
            **reports.times(),
            "accounts": trainer.accounts.state(over=over),
        }
        host["totals"] = {}
        for name, totals in reports.totals.items():
            state = totals.state()
            host["totals"][name] = {key: len(state[key]) for key in state}
            for key, values in state.items():
                for i, value in enumerate(values):
                    arrays[f"totals/{name}/{key}/{i}"] = value
    return Snapshot(trainer.step, arrays, copy.deepcopy(host))


def restore(
    trainer: "Trainer",
    snapshot: Snapshot,
    *,
    groups: Collection[str] | None = None,
    going_back: bool = False,
) -> None:
    """Puts a snapshot back into a trainer that was built the same way.

    Args:
        trainer: the trainer, with its loop if one is about to run.
        snapshot: from any strategy.
        groups: restores these groups of variables and the step, and nothing
            else, such as `EVALUATED`; `None` means all there is.
        going_back: whether this very run took the snapshot, so that its
            accounts hold the time before it.

    Raises:
        UserError: model, optimizer or averages have another structure.
        Misfit: something in it is not what it must be.
    """
    variables = {
        group: members
        for group, members in _variables(trainer).items()
        if groups is None or group in groups
    }
    check(snapshot)
    if GUARD not in snapshot.host["variables"]:
        variables.pop(GUARD, None)
    for group, members in variables.items():
        _check_structure(group, members, snapshot.host["variables"])
        _check_types(group, members, snapshot)
    loop = trainer.loop if groups is None else None
    if loop is not None:
        # First: a callback may find that it is not its state.
        ended = _before_end(loop, snapshot)
        loop.callbacks.load_states(
            keras_callbacks.join(
                snapshot.host.get("callbacks", {}) | ended["callbacks"],
                {
                    name.removeprefix("callbacks/"): array
                    for name, array in snapshot.arrays.items()
                },
            )
        )
    for group, members in variables.items():
        for i, variable in enumerate(members):
            variable.assign(snapshot.arrays[key_of(group, i)])
    trainer.parts.untracked.load(
        {
            key: snapshot.arrays[f"untracked/{key}"]
            for key in snapshot.host.get("untracked", {})
        }
    )
    trainer.step = snapshot.step
    # A parameter-server worker that died may have counted a step twice.
    trainer.parts.step.assign(snapshot.step)
    if groups is not None:
        return
    tried = snapshot.host.get("metrics_add_up")
    if isinstance(tried, dict):
        trainer.parts.metrics.stored_trial = tried
    if loop is None:
        return
    loop.reports.logs = dict(ended["logs"])
    if "loop" in snapshot.host:
        loop_state.restore(loop, snapshot.host["loop"])
    for name, counts in snapshot.host.get("totals", {}).items():
        loop.reports.totals[name].load_state(
            totals_by_replica(snapshot, name, counts)
        )
    # Last: what is added to accounts cannot be taken back.
    if "times" in snapshot.host:
        loop.reports.load_times(snapshot.host["times"])
        then = snapshot.host["times"]["accounts"]
        if going_back:
            trainer.accounts.lose_since(then)
        else:
            trainer.accounts.load_state(then)


def _before_end(loop: "Loop", snapshot: Snapshot) -> dict[str, Any]:
    """Logs and callbacks' states that a run goes on from."""
    host = snapshot.host
    ended = None
    if "loop" in host:
        ended = loop_state.before_end(loop, host["loop"], snapshot.step)
    return ended or {"logs": host.get("logs", {}), "callbacks": {}}


def specs(trainer: "Trainer") -> dict[str, tf.TensorSpec]:
    """Shapes and dtypes of the variables, by their names in a snapshot."""
    return {
        key_of(group, i): tf.TensorSpec(variable.shape, variable.dtype)
        for group, members in _variables(trainer).items()
        for i, variable in enumerate(members)
    }


def check_alike(trainer: "Trainer") -> None:
    """Compares step and variables in all processes of a run.

    Raises:
        UserError: they differ; the message names who differs in what.
    """
    if trainer.plugin.is_alone:
        return
    facts: dict[str, Any] = {"step": trainer.step}
    for group, digest in digests(trainer).items():
        facts[f"the variables of {group}"] = digest
    trainer.plugin.check_alike(facts)


def digests(trainer: "Trainer") -> dict[str, str]:
    """By group of variables, a SHA-256 of their values, shortened."""
    found = {}
    for group, members in _variables(trainer).items():
        digest = hashlib.sha256()
        for variable in members:
            digest.update(_on_host(variable).numpy().tobytes())
        found[group] = digest.hexdigest()[:16]
    return found


@contextlib.contextmanager
def unchanged(trainer: "Trainer") -> Iterator[None]:
    """Puts all variables back in the end to what they are now.

    For events of callbacks that a run has had before it was restored: what
    they did then is in the checkpoint.
    """
    variables = sum(_variables(trainer).values(), [])
    values = [_on_host(variable) for variable in variables]
    untracked = trainer.parts.untracked.state()
    yield
    trainer.parts.untracked.load(untracked)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def check_fits(trainer: "Trainer", snapshot: Snapshot) -> None:
    """Checks that an evaluation can use a snapshot.

    Raises:
        Misfit: it does not hold what it must.
    """
    check(snapshot)
    for group, members in _variables(trainer).items():
        there = snapshot.host["variables"].get(group, [])
        if group in EVALUATED and len(there) == len(members):
            _check_types(group, members, snapshot)


def usable(directory: str) -> Iterator[Snapshot]:
    """The checkpoints of a run that hold what they must, newest first.

    Others are passed over, with a warning.
    """
    for snapshot in newest_first(directory):
        try:
            check(snapshot)
        except Misfit as error:
            logging.warning(
                "Passing over the checkpoint of step %d: %s.",
                snapshot.step,
                error,
            )
        else:
            yield snapshot


def restore_newest(
    trainer: "Trainer", directory: str, *, going_back: bool = False
) -> bool:
    """Restores the newest usable checkpoint, if there is one.

    Args:
        trainer: see `restore`.
        directory: holds the run's checkpoints.
        going_back: see `restore`.

    Returns:
        Whether there was one.

    Raises:
        UserError: there are some, and none fits this run.
    """
    misfits = []
    for snapshot in usable(directory):
        try:
            restore(trainer, snapshot, going_back=going_back)
        except _MISFITS as error:
            logging.warning(
                "Passing over the checkpoint of step %d: %s.",
                snapshot.step,
                error if isinstance(error, Misfit) else repr(error),
            )
            misfits.append(f"that of step {snapshot.step}: {error}")
            continue
        _note_changes(trainer, snapshot)
        return True
    if misfits:
        raise UserError(
            f"No checkpoint in {directory} fits this run; {misfits[0]}. If "
            "its code has changed, choose another --model_dir, or start from "
            "it with --init_from."
        )
    return False


def _note_changes(trainer: "Trainer", snapshot: Snapshot) -> None:
    then = snapshot.host.get("fingerprints", {})
    for name, now in trainer.plugin.facts.items():
        if then.get(name, now) != now:
            logging.info(
                "The %s has changed since step %d (%s, now %s).",
                name,
                snapshot.step,
                then[name],
                now,
            )


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
    if parts.watch is not None and parts.watch.variables:
        groups[GUARD] = parts.watch.variables
    return groups


def describe(variable: Any) -> dict[str, Any]:
    """What a snapshot says of a variable: its path and its shape."""
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
    ours = [describe(variable) for variable in members]
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


def _check_types(group: str, members: list[Any], snapshot: Snapshot) -> None:
    """Checks that values of another type can become those of variables."""
    for i, variable in enumerate(members):
        key = key_of(group, i)
        then = tf.as_dtype(snapshot.arrays[key].dtype)
        now = tf.as_dtype(variable.dtype)
        if _kind(then) != _kind(now):
            raise Misfit(
                f"the array {key} is of {then.name}, and {now.name} is wanted"
            )


def _kind(dtype: tf.DType) -> tuple[bool, bool, bool]:
    return dtype.is_floating, dtype.is_integer, dtype.is_bool
