"""Every private name of TensorFlow that a step needs, required at start."""

import tensorflow as tf

from trainer.runtime.private_names import require

_GRAPHS = "tensorflow.python.ops.control_flow_v2_func_graphs"
_DRAWS = "tensorflow.python.ops.gen_stateless_random_ops_v2"
_SEEDS = "tensorflow.python.ops.random_ops_util"

# There is no public way to tell what a graph within a graph is for.
CondBranchFuncGraph = require(_GRAPHS, "CondBranchFuncGraph")
WhileBodyFuncGraph = require(_GRAPHS, "WhileBodyFuncGraph")
WhileCondFuncGraph = require(_GRAPHS, "WhileCondFuncGraph")
# Nor to the function that an operation of a graph calls.
function_of_graph = require(tf.Graph, "_get_function")

# Whatever draws keyed random numbers calls these, by way of their modules. See
# `trainer.step.as_graph`, which puts functions of its own in their place.
random_operations = require(
    "tensorflow.python.ops", "gen_stateless_random_ops_v2"
)
random_keys = require("tensorflow.python.ops", "random_ops_util")
draw_uniform = require(_DRAWS, "stateless_random_uniform_v2")
draw_normal = require(_DRAWS, "stateless_random_normal_v2")
draw_bits = require(_DRAWS, "stateless_random_uniform_full_int_v2")
key_counter_algorithm = require(_SEEDS, "get_key_counter_alg")
algorithm_number = require(_SEEDS, "convert_alg_to_int")
PHILOX: int = require(_SEEDS, "Algorithm").PHILOX.value
AUTO_SELECT: int = require(_SEEDS, "Algorithm").AUTO_SELECT.value
