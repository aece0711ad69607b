"""Small gradients go to a server together, and arrive as they were."""

import numpy as np
import tensorflow as tf

from trainer_plugins.strategies.parameter_server.small_gradients import (
    _MOST_BYTES,
    sent_together,
)

MANY = _MOST_BYTES // 4
SHAPES = [(3, 4), (), (7,), (MANY,), (MANY + 1,), (2, 2), (1, 5), (0, 3)]


def test_gradients_arrive_as_they_were():
    draw = np.random.default_rng(0)
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    half, rows = tf.Variable(tf.zeros(6, tf.float16)), tf.Variable([[0.0] * 2])
    values = [draw.normal(size=shape).astype("float32") for shape in SHAPES]

    @tf.function
    def send(values, narrow, some):
        given = [
            (tf.IndexedSlices(some, tf.constant([0])), rows),
            (None, half),
            (narrow, half),
            *zip(values, variables, strict=True),
        ]
        found = sent_together(given)
        for (_, before), (_, after) in zip(given, found, strict=True):
            assert before is after
        assert [given[i][0] is found[i][0] for i in range(3)] == [True] * 3
        return [gradient for gradient, _ in found[3:]]

    found = send(values, np.ones(6, "float16"), np.ones((1, 2), "float32"))
    for after, before in zip(found, values, strict=True):
        assert after.shape == before.shape
        np.testing.assert_array_equal(after, before)


def test_each_server_gets_one_message_with_all_that_is_small():
    servers = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    with tf.Graph().as_default() as graph:
        given = []
        for i, shape in enumerate(SHAPES):
            with tf.device(servers[i % 2]):
                variable = tf.compat.v1.get_variable(f"{i}", shape)
            given.append((tf.zeros(shape), variable))
        for gradient, variable in sent_together(given):
            with tf.device(variable.device):
                tf.identity(gradient, name="arrived")
    sent = {server: set() for server in servers}
    for op in graph.get_operations():
        if op.type in ("SplitV", "Identity") and op.device in sent:
            sent[op.device] |= {t.name for t in op.inputs if not t.device}
    # The first server also gets the one that is large.
    assert [len(names) for names in sent.values()] == [2, 1]


def test_a_gradient_of_unknown_size_is_sent_alone():
    own = tf.Variable([0.0] * 3)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([3])])
    def send(unknown, known):
        (first, _), (second, _) = sent_together([(unknown, own), (known, own)])
        assert first is unknown
        assert second is known
        return first

    send(np.ones(3, "float32"), np.ones(3, "float32"))
