"""The cluster in `TF_CONFIG`, as TensorFlow, TFJob and Vertex AI write it."""

import json
import os
from collections.abc import Mapping
from typing import Any

from trainer.errors import UserError, nearest
from trainer.strategy.cluster.spec import JOBS, Cluster

_NAME = "TF_CONFIG"
# The name of the chief in TensorFlow 1 and in older Kubernetes operators.
_ALIASES = {"master": "chief"}


def detect(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether `TF_CONFIG` is set and not empty."""
    return environ.get(_NAME, "").strip() not in ("", "{}")


def resolve(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """Reads `TF_CONFIG`.

    Returns:
        The cluster as given, even if it has a single task; `None` if
        `TF_CONFIG` has no `cluster`, because some launchers set it for a
        single process, too.

    Raises:
        UserError: it is not valid JSON, or not a cluster spec.
    """
    config = _parse(environ.get(_NAME, ""))
    # The tasks would only know themselves and the parameter servers.
    if "sparseCluster" in config:
        raise UserError(
            f"{_NAME} has a 'sparseCluster' (TFJob's enableDynamicWorker), "
            "which lists no peers. Turn enableDynamicWorker off."
        )
    cluster = config.get("cluster") or {}
    if not cluster:
        return None
    if not isinstance(cluster, dict):
        raise UserError(
            f"{_NAME}: 'cluster' is a {type(cluster).__name__}. It must be "
            'an object, such as {"worker": ["n1:2222", "n2:2222"]}.'
        )
    jobs = {
        str(_ALIASES.get(job, job)): _addresses(job, value)
        for job, value in cluster.items()
    }
    job, index = _task(config.get("task"))
    return Cluster(jobs, job, index, _NAME)


def _parse(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserError(f"{_NAME} is not valid JSON: {error}.") from None
    except RecursionError:
        raise UserError(f"{_NAME} has brackets nested too deeply.") from None
    if not isinstance(config, dict):
        raise UserError(
            f"{_NAME} is a JSON {type(config).__name__}. It must be an "
            "object with the keys 'cluster' and 'task'."
        )
    return config


def _addresses(job: str, value: Any) -> list[str]:
    """Returns a list of addresses; also from {"0": address, ...}."""
    # TensorFlow's ClusterSpec also accepts tasks by index.
    if isinstance(value, dict):
        keys = [str(i) for i in range(len(value))]
        if sorted(value, key=str) != sorted(keys):
            raise UserError(
                f"{_NAME}: the tasks of job {job!r} are numbered "
                f"{', '.join(map(str, value))}. Number them from 0, without "
                "gaps."
            )
        value = [value[key] for key in keys]
    if isinstance(value, str) or not isinstance(value, list):
        value = [value]
    for address in value:
        if not isinstance(address, str):
            raise UserError(
                f"{_NAME}: {address!r} of job {job!r} is not an address. Write "
                "host:port, such as 10.0.0.2:2222."
            )
    return value


def _task(task: Any) -> tuple[str, int]:
    if not isinstance(task, dict) or not task.get("type"):
        raise UserError(
            f"{_NAME} does not say which task this process is. Add "
            '"task": {"type": "worker", "index": 0}.'
        )
    job = str(task["type"])
    if _ALIASES.get(job, job) not in JOBS:
        raise UserError(
            f"{_NAME}: unknown task type {job!r}. {nearest(job, JOBS)}"
        )
    index = str(task.get("index", 0))
    if not (index.isascii() and index.isdigit() and len(index) < 20):
        raise UserError(
            f"{_NAME}: the task index {index[:40]!r} is not a whole "
            "number >= 0."
        )
    return _ALIASES.get(job, job), int(index)
