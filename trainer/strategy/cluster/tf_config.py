"""The cluster in `TF_CONFIG`, as TensorFlow, TFJob and Vertex AI write it.

Vertex AI writes the same into `CLUSTER_SPEC`, with the names of worker pools.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from trainer.errors import UserError
from trainer.strategy.cluster.spec import Cluster

# The first one that is set counts.
_NAMES = ("TF_CONFIG", "CLUSTER_SPEC")
# The name of the chief in TensorFlow 1 and in older Kubernetes operators, and
# what Vertex AI's pools are for.
_ALIASES = {
    "master": "chief",
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


class _Task(BaseModel):
    type: Annotated[str, Field(min_length=1)]
    # Operators write it as text, too.
    index: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class _Config(BaseModel, extra="allow"):
    cluster: dict[str, list[str]] = {}
    task: _Task | None = None
    sparseCluster: Any = None  # noqa: N815 - its name


def detect(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether `TF_CONFIG` or `CLUSTER_SPEC` is set and not empty."""
    return bool(_name(environ))


def _name(environ: Mapping[str, str]) -> str:
    """The variable that describes the cluster."""
    given = {name: environ.get(name, "").strip() for name in _NAMES}
    return next((one for one in given if given[one] not in ("", "{}")), "")


def resolve(
    environ: Mapping[str, str] = os.environ, *, ps: bool = False
) -> Cluster | None:
    """Reads `TF_CONFIG`, which says itself which tasks are parameter servers.

    Returns:
        The cluster as given, even if it has a single task; `None` if
        `TF_CONFIG` has no `cluster`, because some launchers set it for a
        single process, too.

    Raises:
        UserError: it is not valid JSON, or not a cluster spec.
    """
    name = _name(environ)
    try:
        config = _Config.model_validate_json(environ.get(name, ""))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f" {part}:" for part in first["loc"])
        raise UserError(
            f"{name}:{where} {first['msg']}. It must be an object such as "
            '{"cluster": {"worker": ["n1:2222", "n2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from None
    # The tasks would only know themselves and the parameter servers.
    if config.sparseCluster is not None:
        raise UserError(
            f"{name} has a 'sparseCluster' (TFJob's enableDynamicWorker), "
            "which lists no peers. Turn enableDynamicWorker off."
        )
    if not config.cluster:
        for key in config.model_extra or ():
            if key.lower() in ("cluster", "task"):
                raise UserError(
                    f"{name} has the key {key!r}. Did you mean {key.lower()!r}?"
                )
        return None
    if config.task is None:
        raise UserError(
            f"{name} does not say which task this process is. Add "
            '"task": {"type": "worker", "index": 0}.'
        )
    job = _ALIASES.get(config.task.type, config.task.type)
    jobs = {_ALIASES.get(j, j): found for j, found in config.cluster.items()}
    index = config.task.index
    if index is None and len(jobs.get(job, ())) > 1:
        raise UserError(
            f"{name} does not say which {job} of {len(jobs[job])} this is. "
            'Add "index" to "task".'
        )
    return Cluster(jobs, job, index or 0, name)
