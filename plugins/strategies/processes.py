"""What the strategies of several processes share."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from plugins.clusters.cluster import Cluster


def server_def_resolver(
    cluster: Cluster, jobs: Sequence[str]
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """A cluster in the form that `tf.distribute` takes.

    Args:
        cluster: all tasks, and which one this process is.
        jobs: the jobs that take part in the strategy.
    """
    spec = {job: cluster.jobs[job] for job in jobs if cluster.jobs.get(job)}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer="grpc",
    )


def versions() -> dict[str, str]:
    """What must be equal on all hosts of a run."""
    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def start_server(
    cluster: Cluster, jobs: Sequence[str], *, threads: int
) -> tf.distribute.Server:
    """Starts the TensorFlow server of a worker or parameter server.

    Args:
        cluster: all tasks, and which one this process is.
        jobs: the jobs that take part in the strategy.
        threads: TensorFlow's threads for independent operations.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    return tf.distribute.Server(
        server_def_resolver(cluster, jobs).cluster_spec(),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
        config=config,
    )
