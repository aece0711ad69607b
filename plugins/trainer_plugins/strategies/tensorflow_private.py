"""Every private name of TensorFlow that the plugins need, required at start."""

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

# Which worker a closure runs on has no public name outside of a graph.
dispatch_context = require(
    "tensorflow.python.distribute.coordinator.coordinator_context",
    "get_current_dispatch_context",
)

# Neither XLA's own operations nor the part of a strategy that differs has a
# public name.
_XLA = "tensorflow.compiler.tf2xla.ops.gen_xla_ops"
xla_replica_id = require(_XLA, "xla_replica_id")
xla_all_reduce = require(_XLA, "xla_all_reduce")
OneDeviceExtended = require(
    "tensorflow.python.distribute.one_device_strategy", "OneDeviceExtended"
)
