"""The logger MLflow: a run of MLflow for each run."""

import os
import time
from collections.abc import Mapping
from typing import Any

import gin

from trainer import UserError
from trainer.plugin_api import Media, Text, configurable
from trainer_plugins.loggers.service import Service, images_of

_LONGEST = 500  # Of a parameter's value, in all of MLflow's versions.


@configurable(module="trainer_plugins.loggers")
class MLflow(Service):
    """Logs numbers, images and text to MLflow.

    Hyperparameters are MLflow's parameters: those that were set, and no
    defaults; a resumed run adds those that are new. Images and text are
    artifacts, such as `eval/samples/00000100.png`. Histograms and audio are
    left out.

    Args:
        tracking_uri: where MLflow's server or store is; `None` is
            `MLFLOW_TRACKING_URI`, or if that is not set, `mlflow.db` in the run
            directory.
        experiment: the name of MLflow's experiment.
    """

    package = "mlflow"
    takes = frozenset({"scalar", "image", "text"})

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
        refused = self._mlflow.exceptions.MlflowException
        self.refused = (OSError, refused)
        super().setup()

    def open(self, known: str | None, parameters: Mapping[str, Any]) -> str:
        """See `Service.open`.

        Raises:
            UserError: the store does not answer, or has no such run any more.
        """
        try:
            return self._open_run(known, parameters)
        except self.refused as error:
            raise UserError(
                f"MLflow cannot be used: {str(error).splitlines()[0]}"
            ) from None

    def _open_run(
        self, known: str | None, parameters: Mapping[str, Any]
    ) -> str:
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None and self._experiment == "Default":
            # It is there in every new database, and its artifacts are in the
            # working directory.
            raise UserError(
                "MLflow.experiment = 'Default' keeps its files outside of the "
                "run directory: take another name, or set MLflow.tracking_uri."
            )
        self._client = client = self._mlflow.MlflowClient(uri or self._own())
        if known is None:
            found = client.get_experiment_by_name(self._experiment)
            experiment = (
                client.create_experiment(
                    self._experiment,
                    # MLflow would put them into the working directory.
                    artifact_location=None if uri else self._artifacts(),
                )
                if found is None
                else found.experiment_id
            )
            run = client.create_run(experiment, run_name=self.run_name)
        else:
            client.update_run(known, status="RUNNING")
            run = client.get_run(known)
        run_id: str = run.info.run_id
        # What the store has decides, and not what was noted.
        self._last |= {
            name: max(one.step for one in history)
            for name in run.data.metrics
            if (history := client.get_metric_history(run_id, name))
        }
        for name, value in parameters.items():
            if name not in run.data.params:
                client.log_param(run_id, name, str(value)[:_LONGEST])
        config = gin.operative_config_str()
        client.log_text(run_id, config, "operative_config.gin")
        return run_id

    def send(self, step: int, values: Mapping[str, Any]) -> None:
        """See `Service.send`."""
        now = int(time.time() * 1000)
        metrics = []
        for name, value in values.items():
            if not isinstance(value, Media):
                metric = self._mlflow.entities.Metric
                metrics.append(metric(name, float(value), now, step))
            elif value.kind == "text":
                path = f"{name}/{step:08d}.txt"
                self._client.log_text(self._id, value.data, path)
            else:
                # A name of its own for each step: one that is written again
                # takes the place of the first.
                for key, image in images_of(value, name).items():
                    path = f"{key}/{step:08d}.png"
                    self._client.log_image(self._id, image, path)
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, *, done: bool) -> None:
        """See `Service.end`."""
        status = "FINISHED" if done else "KILLED"
        self._client.set_terminated(self._id, status)

    def _own(self) -> str:
        return "sqlite:///" + os.path.join(self._directory(), "mlflow.db")

    def _artifacts(self) -> str:
        return os.path.join(self._directory(), "mlartifacts")

    def _directory(self) -> str:
        directory = self.run.model_dir or ""
        if "://" in directory:
            raise UserError(
                f"MLflow cannot keep a database in {directory}: set "
                "MLflow.tracking_uri."
            )
        return os.path.abspath(directory)
