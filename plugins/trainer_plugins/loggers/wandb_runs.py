"""The logger WandB: a run of Weights & Biases for each run."""

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from trainer import UserError
from trainer.plugin_api import Media, Text, configurable
from trainer_plugins.loggers.service import Service

_STEP = "step"
_FLUSH_SECONDS = 0.2


@configurable(module="trainer_plugins.loggers")
class WandB(Service):
    """Logs numbers, images, histograms and text to Weights & Biases.

    The run's configuration holds what was set, without defaults. Charts are
    drawn over the key `step`, the optimizer steps. W&B's own files are in
    `wandb/` of the run directory, which must be local.

    Args:
        project: the name of W&B's project; `None` is `WANDB_PROJECT`, or W&B's
            default.
        entity: a user or a team; `None` is W&B's default.
        mode: `"offline"` keeps all in files, for `wandb sync`; `None` is
            `WANDB_MODE`, or `"online"`.
    """

    package = "wandb"
    takes = frozenset({"scalar", "image", "histogram", "text"})

    def __init__(
        self,
        project: Text | None = None,
        entity: Text | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        super().__init__()
        self._options = {"project": project, "entity": entity, "mode": mode}
        self._run: Any = None
        self._wandb: Any = None

    def setup(self) -> None:
        """See `Service.setup`."""
        self._wandb = self.package_itself()
        self.refused = (OSError, self._wandb.errors.CommError)
        super().setup()

    def open(self, known: str | None, parameters: Mapping[str, Any]) -> str:
        """See `Service.open`.

        Raises:
            UserError: W&B refuses, or the run directory is remote.
        """
        directory = self.run.model_dir or ""
        if "://" in directory:
            raise UserError(
                f"WandB cannot write its files in {directory}: it needs a "
                "local --model_dir."
            )
        os.makedirs(directory, exist_ok=True)
        try:
            self._run = self._wandb.init(
                id=known,
                resume="allow",
                name=self.run_name,
                config=dict(parameters),
                dir=directory,
                settings=self._wandb.Settings(
                    # Not git and output: `run.json` and a log have them.
                    console="off",
                    disable_git=True,
                    silent=True,
                    # By default 15 seconds, which a killed process loses.
                    x_transaction_log_flush_interval=_FLUSH_SECONDS,
                ),
                **self._options,
            )
        except self._wandb.errors.Error as error:
            raise UserError(
                f"W&B cannot be used: {str(error).splitlines()[0]} For a run "
                "without a connection set WandB.mode = 'offline'."
            ) from None
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)
        run_id: str = self._run.id
        return run_id

    def send(self, step: int, values: Mapping[str, Any]) -> None:
        """See `Service.send`."""
        row = {name: self._as_wandb(one) for name, one in values.items()}
        # Not `step=`: W&B takes one row of each step, in ascending order.
        self._run.log({**row, _STEP: step})

    def settle(self) -> None:
        """See `Service.settle`."""
        # W&B's process writes its file at this interval.
        time.sleep(3 * _FLUSH_SECONDS)

    def end(self, *, done: bool) -> None:
        """See `Service.end`."""
        self._run.finish(exit_code=0 if done else 1)
        self._run = None

    def _as_wandb(self, value: Any) -> Any:
        if not isinstance(value, Media):
            return float(value)
        if value.kind == "image":
            return [self._wandb.Image(np.squeeze(one)) for one in value.data]
        if value.kind == "histogram":
            left, right, counts = value.data.T
            edges = np.append(left, right[-1:])
            if not counts.size:
                return self._wandb.Histogram([])
            return self._wandb.Histogram(np_histogram=(counts, edges))
        return value.data
