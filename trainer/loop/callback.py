"""`Callback`: a Keras callback with state, due steps and events of saving."""

from typing import Any

import keras

from trainer.loop.run import Run
from trainer.values.configurable import ShowsArguments


class Callback(ShowsArguments, keras.callbacks.Callback):
    """A Keras callback with a run, saved state and exact due steps.

    Any `keras.callbacks.Callback` runs in the loop unchanged. The events come
    in this order:

    1. `setup`, of every callback, before anything is restored or trained.
    2. `on_train_begin`.
    3. In each epoch, `on_epoch_begin`, and then for each host loop of K steps:
       `on_train_batch_begin`, the K steps, `on_train_batch_end`; when an
       evaluation is due, `on_test_begin` and `on_test_end`, with
       `on_test_batch_begin` and `on_test_batch_end` around each batch if a
       callback has them; when a log is due, `on_log` for the train and the
       eval split; at the end of an epoch, `on_epoch_end`; and `on_save`.
    4. `before_end` of savers, `on_train_end`, `on_done`, `close`.

    Saving comes after the epoch's end, so that a checkpoint includes the
    effects of `on_epoch_end`. If the clock cuts a host loop into several graph
    calls, savers also get `on_save` between them.

    A run that has to exit (see `Run.start_again`) goes from the end of a graph
    call to `on_leave` and `close`. The events that were due then come first at
    the next start. A run that rolls back (see `trainer.Guard`) goes from the K
    steps to `on_divergence`, restores a checkpoint's state, and continues with
    `on_roll_back` and `on_epoch_begin`.

    `on_train_begin` is called in every attempt, after everything is restored.
    To do something once per run, check that `run.step == 0`. `on_epoch_begin`
    is also called when a run continues within an epoch; afterwards, the
    variables and the callbacks' states are reset to what they were.

    Attributes:
        run: the running `Trainer`; set before `setup`.
        runs_last: savers set this, so that they see what the others logged.
        single: whether a run may have only one of its class, for example
            because two would write the same file.
        only_watches: its `on_log` only shows or records values, so that an
            evaluator next to the training process calls it, too; see
            `trainer.sidecar_evaluator`.
        following: whether this process is such an evaluator; set before
            `setup`. It also calls `on_test_*` of callbacks that have them, and
            no event of training. A callback that writes must then write to
            different files: the training process has the usual ones open.
    """

    runs_last: bool = False
    single: bool = False
    only_watches: bool = False
    following: bool = False
    by_default: bool = False
    verbose: int = 1

    def __init__(self) -> None:
        super().__init__()
        # Never None where a callback is called: the annotation spares every
        # callback a check.
        self.run: Run = None  # type: ignore[assignment]

    def setup(self) -> None:
        """Called once, in callback order, before the first event."""

    def next_due(self, step: int) -> int | None:
        """The next step after `step` on which this callback must act.

        The host loop is shortened so that it ends exactly there.
        """
        return None

    def on_log(self, step: int, split: str, logs: dict[str, float]) -> None:
        """Called with the scalars of a split when a log is due.

        Args:
            step: the number of optimizer steps that are done.
            split: `"train"` (values since the last log), `"eval"`, or another
                set that is evaluated; see `trainer.plugin_api.names_in_logs`.
            logs: scalar name to value.
        """

    def on_final_log(
        self, step: int, split: str, logs: dict[str, float]
    ) -> None:
        """Called with scalars that are logged only because the run ends.

        By default they are shown if `only_watches` is set, and decide nothing:
        a run that continues from here does not have them.

        Args:
            step: see `on_log`, as all arguments.
            split: likewise.
            logs: likewise.
        """
        if self.only_watches:
            self.on_log(step, split, logs)

    def on_save(self, step: int, logs: dict[str, float]) -> None:
        """Called after every host loop, when all other events have fired.

        Args:
            step: the number of optimizer steps that are done.
            logs: the newest train values, and eval values under `val_*`.
        """

    def before_end(self, logs: dict[str, float]) -> None:
        """Called when nothing is left to train, before any `on_train_end`.

        Only savers are called. Other callbacks then see what they have loaded.

        Args:
            logs: as in `on_save`.
        """

    def on_done(self) -> None:
        """Called when the end of the run is saved, before it counts as done.

        Raises:
            UserError: the run is not done, because a part of it is missing.
        """

    def load_best_weights(self) -> None:
        """Loads better weights than the newest, to be evaluated or exported.

        Called without `setup`, by the modes that only read a run.
        """

    def on_leave(self, step: int) -> None:
        """Called when the run has to exit and start again: save now.

        Only `close` follows.

        Args:
            step: the number of optimizer steps that are done.
        """

    def on_divergence(self, step: int) -> None:
        """Called when the guard has found a bad step: finish pending work.

        Args:
            step: the number of optimizer steps that are done, bad ones
                included.
        """

    def on_roll_back(self, step: int) -> None:
        """Called when the run has gone back, with all state restored.

        What this callback wrote about later steps will be written again.

        Args:
            step: the number of optimizer steps that are done now.
        """

    def state(self) -> dict[str, Any]:
        """The state to save in a checkpoint, as JSON values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned.

        Check it before you set anything: a checkpoint may hold anything.

        Raises:
            ValueError: `state` returns no such value. The checkpoint is then
                skipped, and the one before it is tried.
        """

    def close(self) -> None:
        """Called on every exit, even if the `close` of another one failed."""
