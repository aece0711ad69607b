"""Every private name of TensorFlow that the plugins need, required at start."""

from typing import Any

import tensorflow as tf

from trainer.plugin_api import require

# Connecting the workers of a cluster.
binding = require("tensorflow.python", "pywrap_tfe")
CONNECT = "TFE_EnableCollectiveOps"
connect = require(binding, CONNECT)
eager_context = require("tensorflow.python.eager.context", "context")
coordination_leader = require(
    "tensorflow.python.distribute.multi_worker_util", "coordination_leader"
)
_CONFIG = "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2"
CoordinatedJob = require(_CONFIG, "CoordinatedJob")
_ServiceConfig = require(_CONFIG, "CoordinationServiceConfig")
require(_ServiceConfig(), "cluster_register_with_barrier")
_SERVICE = "_coordination_service_config"
require(eager_context(), _SERVICE)

# Which worker a closure runs on has no public name outside of a graph.
dispatch_context = require(
    "tensorflow.python.distribute.coordinator.coordinator_context",
    "get_current_dispatch_context",
)
# The names that cancel a closure, and that pass an iterator to a worker.
_Queue = require(
    "tensorflow.python.distribute.coordinator.cluster_coordinator",
    "_CoordinatedClosureQueue",
)
_CANCELLATION = "_cancellation_mgr"
require(_Queue(), _CANCELLATION)
_SPECS = "_component_specs"
require(tf.TypeSpec, _SPECS)

# Neither XLA's own operations nor the part of a strategy that differs has a
# public name.
_XLA = "tensorflow.compiler.tf2xla.ops.gen_xla_ops"
xla_replica_id = require(_XLA, "xla_replica_id")
xla_all_reduce = require(_XLA, "xla_all_reduce")
OneDeviceExtended = require(
    "tensorflow.python.distribute.one_device_strategy", "OneDeviceExtended"
)


def service_config(context: Any) -> Any:
    """The settings of TensorFlow's coordination service, to be changed."""
    return require(context, _SERVICE)


def cancelable(function: Any, queue: Any) -> Any:
    """A traced function that an error of another closure in a queue ends."""
    return require(queue, _CANCELLATION).get_cancelable_function(function)


def parts_of(value: Any) -> Any:
    """The specs of the tensors that a composite one consists of."""
    return require(tf.type_spec_from_value(value), _SPECS)
