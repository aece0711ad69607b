"""A step that is traced again says what has changed, once per cause."""

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from tests.helpers import linear, make_trainer
from trainer.runtime.graph import graph_function
from trainer.runtime.retracing import telling_retraces


@pytest.fixture
def said(monkeypatch):
    found = []
    monkeypatch.setattr(
        logging, "warning", lambda text, *values: found.append(text % values)
    )
    return found


def test_each_kind_of_cause_is_told_once(said):
    def double(batch, scale=1):
        return tf.nest.map_structure(lambda part: part * scale, batch)

    function = graph_function(telling_retraces(double, "test step"))
    for _ in range(2):
        function((tf.ones([2, 3]), tf.ones([2])))
    assert said == []
    for _ in range(2):
        function((tf.ones([4, 3]), tf.ones([2])))
        function((tf.ones([2, 3], tf.float64), tf.ones([2])))
        function((tf.ones([2, 3]), tf.ones([2])), 2)
        function((tf.ones([2, 3]),))
    assert [one.partition(": ")[2] for one in said] == [
        "the shape of batch[0] is (4, 3), was (2, 3).",
        "the dtype of batch[0] is float64, was float32.",
        "the value of scale is 2, was 1.",
        "the structure has changed: dtype of batch[1], shape of batch[1] is "
        "gone.",
    ]


@pytest.mark.long
def test_a_run(said):
    def batches(size, dtype="float32"):
        x = np.ones((12, 3), dtype)
        rows = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return rows.batch(size, drop_remainder=True)

    trainer = make_trainer(
        linear,
        data=None,
        batch_size=None,
        jit_compile=False,
    )
    trainer.fit(batches(4), verbose=0)
    trainer.fit(batches(4), verbose=0)
    assert said == []
    trainer.fit(batches(4, "float64"), verbose=0)
    assert any("train step is traced again" in one for one in said)
    assert any("dtype of batch[0] is float64, was float32" in s for s in said)
    said.clear()
    trainer.predict(np.ones((4, 3), "float32"))
    trainer.predict(np.ones((4, 3), "float32"))
    assert said == []
