"""Every private name of TensorFlow that the core needs, required at start.

They are in this one file, so that it is the only one to read before an upgrade
of TensorFlow. See `require`.
"""

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf

from trainer.runtime.private_names import require

_OPS = "tensorflow.python.ops"
_GRAPHS = f"{_OPS}.control_flow_v2_func_graphs"

# There is no public way to tell what a graph within a graph is for.
CondBranchFuncGraph = require(_GRAPHS, "CondBranchFuncGraph")
WhileBodyFuncGraph = require(_GRAPHS, "WhileBodyFuncGraph")
WhileCondFuncGraph = require(_GRAPHS, "WhileCondFuncGraph")
# Nor to the function that an operation of a graph calls, and which resources
# are variables.
function_of_graph = require(tf.Graph, "_get_function")
data_of_handle = require(
    f"{_OPS}.resource_variable_ops", "get_eager_safe_handle_data"
)
# Nor whether op determinism is on, and what seeds the operations without one.
is_deterministic = require(
    "tensorflow.python.framework.config", "is_op_determinism_enabled"
)
eager_context = require("tensorflow.python.eager.context", "context")
require(eager_context(), "_seed")

# Whatever draws keyed random numbers calls these, by way of their modules. See
# `trainer.step.as_graph`, which puts functions of its own in their place.
random_operations = require(_OPS, "gen_stateless_random_ops_v2")
random_keys = require(_OPS, "random_ops_util")
draw_uniform = require(random_operations, "stateless_random_uniform_v2")
draw_normal = require(random_operations, "stateless_random_normal_v2")
draw_bits = require(random_operations, "stateless_random_uniform_full_int_v2")
key_counter_algorithm = require(random_keys, "get_key_counter_alg")
algorithm_number = require(random_keys, "convert_alg_to_int")
_Algorithm = require(random_keys, "Algorithm")
PHILOX: int = require(_Algorithm, "PHILOX").value
AUTO_SELECT: int = require(_Algorithm, "AUTO_SELECT").value

# Nor to set options of what an iterator of tf.distribute has for each device.
_iterators = require("tensorflow.python.data.ops", "multi_device_iterator_ops")
_device_dataset = require(_iterators, "_create_device_dataset")

# There is no public way to keep AutoGraph from a package, see `runtime.graph`.
autograph_config = require("tensorflow.python.autograph.core", "config")
require(autograph_config, "CONVERSION_RULES")
require(autograph_config, "DoNotConvert")

# The operations that draw, by their module; see `trainer.step.probe_runs`.
DRAWS = {
    require(_OPS, "gen_random_ops"): (
        "random_uniform",
        "random_uniform_int",
        "random_standard_normal",
        "truncated_normal",
    ),
    random_operations: (
        "stateless_random_uniform_v2",
        "stateless_random_uniform_int_v2",
        "stateless_random_uniform_full_int_v2",
        "stateless_random_normal_v2",
        "stateless_truncated_normal_v2",
    ),
}
for _module, _names in DRAWS.items():
    for _name in _names:
        require(_module, _name)


def watched_variables(graph: tf.Graph) -> Iterable[tf.Variable]:
    """The variables that the graph of a function has read."""
    found: Iterable[tf.Variable] = require(graph, "_watched_variables")
    return found


@contextlib.contextmanager
def untuned_devices() -> Iterator[None]:
    """Lets tf.data not tune what iterators of tf.distribute have by device.

    There is nothing to tune, and to drop an iterator that is tuned may take a
    minute, in which Python's lock is kept.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    _iterators._create_device_dataset = lambda *args: _device_dataset(
        *args
    ).with_options(options)
    try:
        yield
    finally:
        _iterators._create_device_dataset = _device_dataset
