"""Captures the whole state of a run, and restores it exactly."""

import contextlib
import copy
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from trainer.checkpoint.contents import (
    Snapshot,
    check_variables,
    describe,
    key_of,
)
from trainer.checkpoint.storage import newest_first
from trainer.errors import UserError
from trainer.runtime import fingerprints
from trainer.runtime.schema import Misfit
from trainer.step.keras.private import native
from trainer.step.spec import Parts
from trainer.strategy.plugin import StrategyPlugin

# The groups of variables that an evaluation needs.
EVALUATED = ("model", "ema")
# Errors that a state may cause although it has passed all checks.
_MISFITS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,  # `Misfit` is one.
)


class HostState(Protocol):
    """The part of a checkpoint that the host loop adds."""

    def capture(self, *, over: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """JSON values and arrays, by name."""

    def load_callbacks(self, snapshot: Snapshot) -> None:
        """Restores the states of callbacks.

        Raises:
            Misfit: a callback does not take its state; nothing has changed.
        """

    def load(self, snapshot: Snapshot, *, going_back: bool) -> None:
        """Restores the rest of what `capture` returned."""


class RunState:
    """The state of a run that a checkpoint holds.

    Args:
        parts: the run's variables.
        processes: the strategy plugin.

    Attributes:
        step: the optimizer steps that are done.
        host: the loop's part, while there is one.
    """

    def __init__(
        self,
        parts: Parts,
        processes: StrategyPlugin,
    ) -> None:
        self.step = 0
        self.host: HostState | None = None
        self._parts = parts
        self._processes = processes

    def capture(self, *, over: bool = False) -> Snapshot:
        """Takes a snapshot of the run between two host loops.

        The tensors share memory with the variables until these change:
        TensorFlow copies a variable that is written while it is being read.
        Everything else is copied: the run continues while the snapshot is
        written.

        Args:
            over: whether the run has ended.
        """
        if self._parts.ema is not None:
            self._parts.ema.follow()
        variables = self._variables()
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
        if self.host is not None:
            of_loop, arrays_of_loop = self.host.capture(over=over)
            host |= of_loop
            arrays |= arrays_of_loop
        # Callbacks hand out lists and dicts that they keep changing.
        return Snapshot(self.step, arrays, copy.deepcopy(host))

    def restore(
        self,
        snapshot: Snapshot,
        *,
        groups: Collection[str] | None = None,
        going_back: bool = False,
    ) -> None:
        """Restores a snapshot into a run that was built the same way.

        Args:
            snapshot: from any strategy.
            groups: restores only these groups of variables, such as
                `EVALUATED`, and the step; `None` means everything.
            going_back: whether this same process took the snapshot, so that
                its accounts hold the time before it.

        Raises:
            UserError: model, optimizer or averages have another structure.
            Misfit: something in it is not valid.
        """
        variables = {
            group: members
            for group, members in self._variables().items()
            if groups is None or group in groups
        }
        # Everything is checked before anything is assigned, so that a snapshot
        # that is refused leaves no trace.
        for group, members in variables.items():
            check_variables(group, members, snapshot)
        host = self.host if groups is None else None
        if host is not None:
            # Before any variable has changed: a callback may refuse it.
            host.load_callbacks(snapshot)
        for group, members in variables.items():
            for i, variable in enumerate(members):
                variable.assign(snapshot.arrays[key_of(group, i)])
        parts = self._parts
        self.step = snapshot.step
        # Not the variable's own value: a parameter-server worker that died may
        # have counted a step twice.
        parts.step.assign(snapshot.step)
        if parts.ema is not None:
            parts.ema.is_stale = False  # They are of these weights.
        if groups is not None:
            return
        if host is not None:
            host.load(snapshot, going_back=going_back)

    def restore_weights(self, snapshot: Snapshot) -> None:
        """Restores what an evaluation needs; the step stays as it is.

        Raises:
            UserError: the model or its averages have another structure.
            Misfit: something in it is not valid.
        """
        step = self.step
        self.restore(snapshot, groups=EVALUATED)
        self.step = step
        self._parts.step.assign(step)

    def restore_newest(
        self, directory: str, *, going_back: bool = False
    ) -> bool:
        """Restores the newest usable checkpoint, if there is one.

        Args:
            directory: holds the run's checkpoints.
            going_back: see `restore`.

        Returns:
            Whether there was one.

        Raises:
            UserError: there are some, and none fits this run.
            StartAgain: they cannot be read at the moment.
        """
        misfits = []
        # One by one: an older checkpoint is read only if the newer one does not
        # fit.
        for snapshot in newest_first(directory):
            try:
                self.restore(snapshot, going_back=going_back)
            except UserError:
                raise
            except _MISFITS as error:
                logging.warning(
                    "Skipping the checkpoint of step %d: %s.",
                    snapshot.step,
                    error if isinstance(error, Misfit) else repr(error),
                )
                misfits.append(f"that of step {snapshot.step}: {error}")
                continue
            return True
        if misfits:
            # Starting from scratch would overwrite what the run has done so
            # far.
            raise UserError(
                f"No checkpoint in {directory} fits this run; {misfits[0]}. "
                "If its code has changed, choose another --model_dir, or "
                "start from it with --init_from."
            )
        return False

    @property
    def held(self) -> set[int]:
        """The ids of the variables that a snapshot holds."""
        return {id(native(v)) for v in sum(self._variables().values(), [])}

    def digests(self) -> dict[str, str]:
        """By group of variables, the fingerprint of their values."""
        return {
            group: fingerprints.arrays(_on_host(v).numpy() for v in members)
            for group, members in self._variables().items()
        }

    def check_alike(self) -> None:
        """Compares step and variables in all processes of a run.

        Raises:
            UserError: they differ; the message says which process differs in
                what.
        """
        processes = self._processes
        # Spares a run on its own the hashing of all its variables.
        if processes.is_alone:
            return
        facts: dict[str, Any] = {"step": self.step}
        for group, digest in self.digests().items():
            facts[f"the variables of {group}"] = digest
        processes.check_alike(facts)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Sets step and variables back, at the end, to what they are now.

        For events of callbacks that are called a second time in a resumed
        run: what they did the first time is in the checkpoint. And for steps
        that are tried.
        """
        parts = self._parts
        variables = sum(self._variables().values(), [])
        # On the host: the event may assign any of the variables.
        values = [_on_host(variable) for variable in variables]
        before = self.step
        stale = parts.ema is not None and parts.ema.is_stale
        metrics = {name: {**its} for name, its in parts.metrics.states.items()}
        try:
            yield
        finally:
            self.step = before
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            parts.metrics.states = metrics
            if parts.ema is not None:
                parts.ema.is_stale = stale
            if parts.guard is not None:
                parts.guard.forget()

    def _variables(self) -> dict[str, list[Any]]:
        """Every variable of a run, in groups that a checkpoint keeps apart."""
        parts = self._parts
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


def _on_host(variable: Any) -> tf.Tensor:
    # Of a distributed variable this is one copy, or its reduced value.
    with tf.device("CPU:0"):
        return tf.identity(native(variable).read_value())
