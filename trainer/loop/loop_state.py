"""The host loop's part of a checkpoint: its position, logs and callbacks."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from trainer.checkpoint.storage import Snapshot
from trainer.loop.callback_list import CallbackList
from trainer.loop.reporter import Reporter
from trainer.loop.run import Run
from trainer.run_options import RunOptions
from trainer.runtime.schema import Misfit
from trainer.strategy.optimizers import check_has_no_end


class LoopState:
    """The position of a host loop, and the state of its callbacks and logs.

    Args:
        run: whose loop it is.
        options: of the run.
        reporter: keeps the logs.
        callbacks: of the run.
        is_fit: whether it has epochs of its own, as `Trainer.fit` makes them.

    Attributes:
        steps_per_loop: the most steps in one host loop.
        steps_per_call: the most steps in one graph call.
        execution: the steps that make one batch for callbacks, as Keras counts
            them from the beginning of an epoch.
        is_within: whether a host loop has begun and not ended.
        compared: see `trainer.loop.compiled_form.CompiledForm`.
    """

    def __init__(
        self,
        run: Run,
        options: RunOptions,
        *,
        reporter: Reporter,
        callbacks: CallbackList,
        is_fit: bool,
    ) -> None:
        self.steps_per_loop = callbacks.steps_per_loop(options.steps_per_loop)
        self.steps_per_call = self.steps_per_loop
        self.execution = 1 if options.steps_per_loop else callbacks.execution
        self.is_within = False
        self.compared: dict[str, str] = {}
        self._run = run
        self._is_fit = is_fit
        if not is_fit:
            check_has_no_end(run.parts.optimizers)
        self._reporter = reporter
        self._callbacks = callbacks
        # What a user changes to make a stopped run continue.
        self._asked = {
            "steps": run.steps,
            "configuration": run.plugin.facts.get("configuration"),
            "max_time": options.max_time,
        }

    def capture(self, *, over: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `trainer.checkpoint.stateful.HostState`."""
        arrays: dict[str, Any] = {
            f"callbacks/{key}/{name}": np.frombuffer(data, np.uint8)
            for key, state in self._callbacks.states_of_keras().items()
            for name, data in state.items()
        }
        host: dict[str, Any] = {
            "callbacks": {
                key: state
                for key, state in self._callbacks.states().items()
                if state
            },
            "fingerprint": self._asked["configuration"],
            "logs": self._reporter.logs,
            "loop": self._position(),
            "times": {
                "interval_seconds": self._reporter.interval_seconds,
                "elapsed": {
                    name: ticker.elapsed
                    for name, ticker in self._reporter.tickers.items()
                },
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

    def _position(self) -> dict[str, Any]:
        """The loop's position between two graph calls, as JSON values."""
        run, stopped = self._run, None
        if run.is_stopped:
            stopped = {
                "reason": run.stop_reason,
                "by_model": bool(run.model.stop_training),
                **self._asked,
            }
        return {
            "unfired_from": run.unfired_from,
            "begun_epoch": self._reporter.begun_epoch,
            "is_within": self.is_within,
            "steps_per_loop": self.steps_per_call,
            "asked_steps_per_loop": self.steps_per_loop,
            "compared": dict(self.compared),
            "logged": run.logged.state(),
            "stopped": stopped,
        }

    def load_callbacks(self, snapshot: Snapshot) -> None:
        """See `trainer.checkpoint.stateful.HostState`."""
        states = dict(snapshot.host.get("callbacks", {}))
        for name, array in snapshot.arrays.items():
            kind, _, rest = name.partition("/")
            if kind == "callbacks":
                key, _, attribute = rest.partition("/")
                data = np.asarray(array).tobytes()
                states[key] = {**states.get(key, {}), attribute: data}
        self._callbacks.load_states(states)

    def load(self, snapshot: Snapshot, *, going_back: bool) -> None:
        """See `trainer.checkpoint.stateful.HostState`."""
        host = snapshot.host
        # A snapshot that was taken outside of a loop has nothing of one.
        if "loop" not in host:
            return
        self._run.saved_under = host.get("fingerprint")
        self._reporter.logs = dict(host["logs"])
        self._load_position(host["loop"])
        self._load_stop(host["loop"]["stopped"])
        for name, counts in host["totals"].items():
            self._reporter.intervals[name].load_state(
                {
                    key: [
                        snapshot.arrays[f"totals/{name}/{key}/{i}"]
                        for i in range(count)
                    ]
                    for key, count in counts.items()
                }
            )
        times = host["times"]
        self._reporter.interval_seconds = times["interval_seconds"]
        for name, ticker in self._reporter.tickers.items():
            ticker.carry(times["elapsed"].get(name, 0.0))
        # Last: what is added to accounts cannot be undone.
        then = times["accounts"]
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
        host, arrays = last.capture(over=True)
        host["loop"]["stopped"] = None
        snapshot = Snapshot(self._run.step, arrays, host)
        # States are matched by class name: another class may have the same.
        with contextlib.suppress(Misfit):
            self.load_callbacks(snapshot)
        self.load(snapshot, going_back=False)

    def _load_position(self, position: Mapping[str, Any]) -> None:
        self._run.unfired_from = position["unfired_from"]
        self._reporter.begun_epoch = position["begun_epoch"]
        self.is_within = position.get("is_within", False)
        self.compared.clear()
        self.compared.update(position.get("compared", {}))
        self._run.logged.load_state(position.get("logged", {}))
        # A length that was too slow stays halved, unless the user has changed
        # steps_per_loop.
        if position["asked_steps_per_loop"] == self.steps_per_loop:
            self.steps_per_call = position["steps_per_loop"]

    def _load_stop(self, stopped: Mapping[str, Any] | None) -> None:
        """Keeps a stopped run stopped, unless its configuration has changed.

        Otherwise the same command, started again, would train on.
        """
        # What the snapshot says decides, not what this process has set so far.
        self._run.model.stop_training = False
        if stopped is None:
            return
        step = self._run.step
        why = stopped["reason"] or "a callback set stop_training"
        if any(stopped.get(name) != v for name, v in self._asked.items()):
            logging.info(
                "The run was stopped at step %d (%s). It continues, because "
                "the configuration has changed since.",
                step,
                why,
            )
            return
        self._run.stop_reason = stopped["reason"]
        self._run.model.stop_training = stopped["by_model"]
        logging.warning(
            "The run was stopped at step %d (%s) and stays stopped. To "
            "continue, change train_steps, or the setting that stopped it.",
            step,
            why,
        )
