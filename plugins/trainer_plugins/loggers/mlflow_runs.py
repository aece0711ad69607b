"""The logger MLflow: a run of MLflow for each run."""

import os
import time
from collections.abc import Mapping
from typing import Any

from trainer import UserError
from trainer.plugin_api import Text, configurable
from trainer_plugins.loggers.service import Service

_LONGEST = 500  # Of a parameter's value, in all of MLflow's versions.


@configurable(module="trainer_plugins.loggers")
class MLflow(Service):
    """Logs numbers to MLflow.

    Hyperparameters are MLflow's parameters: those that were set, and no
    defaults; a resumed run adds those that are new.

    Args:
        tracking_uri: where MLflow's server or store is; `None` is
            `MLFLOW_TRACKING_URI`, or if that is not set, `mlflow.db` in the run
            directory.
        experiment: the name of MLflow's experiment.
    """

    package = "mlflow"

    def __init__(
        self, tracking_uri: Text | None = None, experiment: Text = "trainer"
    ) -> None:
        super().__init__()
        self._uri = tracking_uri
        self._experiment = experiment
        self._client: Any = None
        self._mlflow: Any = None

    def setup(self) -> None:
        """See `Service.setup`."""
        self._mlflow = self.package_itself()
        self.refused = (OSError, self._mlflow.exceptions.MlflowException)
        super().setup()

    def open(self, known: str | None, parameters: Mapping[str, Any]) -> str:
        """See `Service.open`.

        Raises:
            UserError: the store does not answer, or has no such run any more.
        """
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._mlflow.MlflowClient(uri or self._own_store())
        try:
            return self._open_run(known, parameters)
        except self.refused as error:
            raise UserError(
                f"MLflow cannot be used: {str(error).splitlines()[0]}"
            ) from None

    def _open_run(
        self, known: str | None, parameters: Mapping[str, Any]
    ) -> str:
        client = self._client
        if known is None:
            found = client.get_experiment_by_name(self._experiment)
            experiment = (
                client.create_experiment(self._experiment)
                if found is None
                else found.experiment_id
            )
            run = client.create_run(experiment, run_name=self.run_name)
        else:
            client.update_run(known, status="RUNNING")
            run = client.get_run(known)
        run_id: str = run.info.run_id
        # The contents of the store decide, and not the record.
        metrics = run.data.to_proto().metrics
        self._last |= {one.key: one.step for one in metrics}
        for name, value in parameters.items():
            if name not in run.data.params:
                client.log_param(run_id, name, str(value)[:_LONGEST])
        return run_id

    def send(self, step: int, values: Mapping[str, Any]) -> None:
        """See `Service.send`."""
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(name, float(value), now, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, *, done: bool) -> None:
        """See `Service.end`."""
        status = "FINISHED" if done else "KILLED"
        self._client.set_terminated(self._id, status)

    def _own_store(self) -> str:
        directory = self.run.model_dir or ""
        if "://" in directory:
            raise UserError(
                f"MLflow cannot keep a database in {directory}: set "
                "MLflow.tracking_uri."
            )
        path = os.path.join(os.path.abspath(directory), "mlflow.db")
        return f"sqlite:///{path}"
