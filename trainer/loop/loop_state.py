"""The host loop's part of a checkpoint: its position, logs and callbacks."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from trainer.checkpoint import keras_callbacks
from trainer.checkpoint.storage import Snapshot
from trainer.loop.callback_list import CallbackList
from trainer.loop.reporter import Reporter
from trainer.loop.run import Run
from trainer.runtime.schema import Misfit


class LoopState:
    """The position of a host loop, and the state of its callbacks and logs.

    Args:
        run: whose loop it is.
        steps_per_loop: the most steps in one host loop.
        reporter: keeps the logs.
        callbacks: of the run.
        max_time: how long the run may train, as it was given.
        is_fit: whether it has epochs of its own, as `Trainer.fit` makes them.

    Attributes:
        steps_per_call: the most steps in one graph call.
        is_within: whether a host loop has begun and not ended.
        compared: see `trainer.loop.compiled_form.CompiledForm`.
    """

    def __init__(
        self,
        run: Run,
        *,
        steps_per_loop: int,
        reporter: Reporter,
        callbacks: CallbackList,
        max_time: str | None,
        is_fit: bool,
    ) -> None:
        assert run.steps is not None
        self.steps = run.steps
        self.steps_per_loop = self.steps_per_call = steps_per_loop
        self.is_within = False
        self.compared: dict[str, str] = {}
        self._run = run
        self._is_fit = is_fit
        self._reporter = reporter
        self._callbacks = callbacks
        self._max_time = max_time

    def capture(self, *, over: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `trainer.checkpoint.stateful.HostState`."""
        callbacks, of_callbacks = keras_callbacks.split(
            self._callbacks.states()
        )
        arrays = {
            # A copy: training goes on while the snapshot is written.
            f"callbacks/{name}": np.array(array)
            for name, array in of_callbacks.items()
        }
        host: dict[str, Any] = {
            "callbacks": callbacks,
            "logs": self._reporter.logs,
            "loop": self.position(),
            "times": {
                **self._reporter.times(),
                "accounts": self._run.accounts.state(over=over),
            },
            "totals": {},
        }
        for name, interval in self._reporter.intervals.items():
            state = interval.state()
            host["totals"][name] = {key: len(state[key]) for key in state}
            for key, values in state.items():
                for i, value in enumerate(values):
                    arrays[f"totals/{name}/{key}/{i}"] = value
        return host, arrays

    def position(self) -> dict[str, Any]:
        """The loop's position between two graph calls, as JSON values."""
        stopped = None
        if self._run.is_stopped:
            stopped = {
                "reason": self._run.control.stop_reason,
                "by_model": bool(self._run.model.stop_training),
                **self._wanted(),
            }
        logged = self._reporter.logged.state()
        return {
            **({"logged": logged} if logged else {}),
            **({"compared": {**self.compared}} if self.compared else {}),
            "unfired_from": self._run.unfired_from,
            "begun_epoch": self._reporter.begun_epoch,
            "is_within": self.is_within,
            "steps_per_loop": self.steps_per_call,
            "asked_steps_per_loop": self.steps_per_loop,
            "stopped": stopped,
            "final": self._reporter.final_splits,
        }

    def load_callbacks(self, snapshot: Snapshot) -> None:
        """See `trainer.checkpoint.stateful.HostState`."""
        states = keras_callbacks.join(
            snapshot.host.get("callbacks", {}),
            {
                name.removeprefix("callbacks/"): array
                for name, array in snapshot.arrays.items()
            },
        )
        self._callbacks.load_states(states)

    def load(self, snapshot: Snapshot, *, going_back: bool) -> None:
        """See `trainer.checkpoint.stateful.HostState`."""
        host = snapshot.host
        self._reporter.logs = dict(host.get("logs", {}))
        # A snapshot that was taken outside of a loop has none.
        if "loop" in host:
            self._load_position(host["loop"], step=snapshot.step)
        for name, counts in host.get("totals", {}).items():
            self._reporter.intervals[name].load_state(
                {
                    key: [
                        snapshot.arrays[f"totals/{name}/{key}/{i}"]
                        for i in range(count)
                    ]
                    for key, count in counts.items()
                }
            )
        if "times" not in host:
            return
        # Last: what is added to accounts cannot be undone.
        self._reporter.load_times(host["times"])
        then = host["times"]["accounts"]
        if going_back:
            self._run.accounts.lose_since(then)
        else:
            self._run.accounts.load_state(then)

    def continue_from(self, last: "LoopState") -> None:
        """Resumes where the last loop of the same Trainer ended.

        If that one was stopped, this one is not: it was called explicitly.
        Each call of `fit` is on its own: neither its epochs nor what its
        callbacks have counted are those of the run.

        Args:
            last: of that loop, which has ended well.
        """
        if self._is_fit or last._is_fit or last._run.epochs != self._run.epochs:
            return
        step = self._run.step
        position = {**last.position(), "stopped": None}
        # States are matched by class name: another class may have the same.
        with contextlib.suppress(Misfit):
            self._callbacks.load_states(last._callbacks.states())
        self._load_position(position, step=step)
        self._reporter.logs = dict(last._reporter.logs)
        if self._run.sets and self.steps <= step:
            # Research code may have changed the weights since.
            self._reporter.forget_evaluation()
        self._reporter.load_times(last._reporter.times())
        for name, interval in last._reporter.intervals.items():
            self._reporter.intervals[name].load_state(interval.state())

    def _load_position(self, position: Mapping[str, Any], *, step: int) -> None:
        self._run.unfired_from = position["unfired_from"]
        self._reporter.begun_epoch = position["begun_epoch"]
        self.is_within = position.get("is_within", False)
        self.compared.clear()
        self.compared.update(position.get("compared", {}))
        # A length that was too slow stays halved, unless the user has changed
        # steps_per_loop.
        if position["asked_steps_per_loop"] == self.steps_per_loop:
            self.steps_per_call = position["steps_per_loop"]
        stopped = position["stopped"]
        goes_on = step < self.steps and not (
            stopped is not None and self._stays_stopped(stopped)
        )
        final = list(position.get("final", []))
        self._reporter.final_splits = final
        self._run.taken_back = final if goes_on else ()
        self._reporter.logged.load_state(
            position.get("logged", {}), goes_on=goes_on
        )
        self._load_stop(position["stopped"], step=step)

    def _load_stop(
        self, stopped: Mapping[str, Any] | None, *, step: int
    ) -> None:
        """Keeps a stopped run stopped, unless its configuration has changed.

        Otherwise the same command, started again, would train on.
        """
        # What the snapshot says decides, not what this process has set so far.
        self._run.model.stop_training = False
        if stopped is None:
            return
        why = stopped["reason"] or "a callback set stop_training"
        if self._stays_stopped(stopped):
            self._run.control.stop_reason = stopped["reason"]
            self._run.model.stop_training = stopped["by_model"]
            logging.warning(
                "The run was stopped at step %d (%s) and stays stopped. To "
                "train on, change train_steps, or what stopped it.",
                step,
                why,
            )
        else:
            logging.info(
                "The run was stopped at step %d (%s). It goes on, because the "
                "configuration has changed since.",
                step,
                why,
            )

    def _stays_stopped(self, stopped: Mapping[str, Any]) -> bool:
        wanted = self._wanted()
        return all(stopped.get(name) == v for name, v in wanted.items())

    def _wanted(self) -> dict[str, Any]:
        # What a user changes to make a stopped run go on.
        return {
            "steps": self.steps,
            "configuration": self._run.plugin.facts.get("configuration"),
            "max_time": self._max_time,
        }
