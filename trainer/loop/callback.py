"""`Callback`: a Keras callback with state, due steps and events of saving."""

from typing import Any

import keras

from trainer.loop.run import Run
from trainer.values.configurable import ShowsArguments


class Callback(ShowsArguments, keras.callbacks.Callback):
    """A Keras callback with a run, saved state and exact due steps.

    Any `keras.callbacks.Callback` runs in the loop as it is. This class adds
    what Keras lacks. Events come in this order:

    `setup` (every callback, before anything is restored or trained) ·
    `on_train_begin` · per epoch `on_epoch_begin` · per host loop of K steps
    `on_train_batch_begin`, the K steps, `on_train_batch_end` · when due
    `on_test_begin`, evaluation, `on_test_end`, with `on_test_batch_begin` and
    `on_test_batch_end` around each batch if a callback has them, then
    `on_log` for the train and the eval split · `on_epoch_end` · `on_save` ·
    `before_end` of savers · `on_train_end` · `on_done` · `close`. Saving comes
    after the epoch's end, so that a checkpoint holds what callbacks did there.
    Where a clock has cut a host loop into several graph calls, savers get
    `on_save` between them, too. A run that has to leave (see
    `Run.start_again`) goes from the end of a graph call to `on_leave` and
    `close`. What was due is called at the next start, before anything else.
    A run that rolls back (see `trainer.Guard`) goes from the K steps to
    `on_divergence`, restores a checkpoint's state, and goes on with
    `on_roll_back` and `on_epoch_begin`.

    `on_train_begin` is called in every attempt, after everything is restored:
    do what is for the run, and not for the attempt, if `run.step == 0`.
    `on_epoch_begin` is also called again within an epoch; afterwards the
    variables and the callbacks' states are set back to what they were.

    Attributes:
        run: the running `Trainer`; set before `setup`.
        runs_last: savers set this, so that they see what the others logged.
        single: whether two of its class would get in each other's way, such
            as by writing the same file; a run may then have only one.
        only_watches: its `on_log` only shows or records values, so that an
            evaluator beside the training process calls it too; see
            `trainer.sidecar_evaluator`.
        following: whether this process is such an evaluator; set before
            `setup`. It also calls `on_test_*` of callbacks that have them, and
            never what is for training. A callback that writes must then write
            to other files: the training process has the usual ones open.
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

        By default they are shown, where `only_watches`, and decide nothing: a
        run that goes on from here does not have them.

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

        Only savers are called. What they load here is what the others find.

        Args:
            logs: as in `on_save`.
        """

    def on_done(self) -> None:
        """Called when the end of the run is saved, before it counts as done.

        Raises:
            UserError: it must not, for something of it is missing.
        """

    def load_best_weights(self) -> None:
        """Loads better weights than the newest, to be evaluated or exported.

        Called without `setup`, by the modes that only read a run.
        """

    def on_leave(self, step: int) -> None:
        """Called when the run has to leave, to be started again: save now.

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
        """What a checkpoint must hold of this callback, as JSON values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned.

        Check it before anything is set: a checkpoint may hold anything.

        Raises:
            ValueError: it is not what `state` returns. The checkpoint is
                then passed over for the one before.
        """

    def close(self) -> None:
        """Called on every exit, also when another callback's close failed."""
