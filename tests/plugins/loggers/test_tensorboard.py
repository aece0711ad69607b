import functools
import sys
import time

import gin
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator,
)
from tensorboard.plugins.hparams import api_pb2, metadata

from tests.plugins.loggers import training
from trainer import UserError
from trainer_plugins import TensorBoard
from trainer_plugins.loggers import tensorboard


@pytest.fixture(autouse=True)
def _clean_gin():
    yield
    gin.clear_config()


make = functools.partial(training.make, TensorBoard)


def read(model_dir, split):
    directory = model_dir / "tensorboard" / split
    found = EventAccumulator(
        str(directory), size_guidance={"tensors": 0, "scalars": 0}
    )
    return found.Reload()


def scalars(events, tag):
    return {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in events.Tensors(tag)
    }


def hparams_content(events, tag):
    content = events.SummaryMetadata(tag).plugin_data.content
    return metadata._parse_plugin_data_as(
        content,
        "session_start_info"
        if tag == metadata.SESSION_START_INFO_TAG
        else "session_end_info",
    )


def test_scalars_go_to_their_splits(tmp_path):
    callback = make(tmp_path)
    callback.on_train_begin()
    callback.on_log(10, "train", {"loss": 0.5, "learning_rate": 0.125})
    callback.on_log(10, "eval", {"loss": 0.75, "accuracy": 0.25})
    callback.on_log(20, "train", {"loss": 0.25})
    callback.close()
    train, evaluated = read(tmp_path, "train"), read(tmp_path, "eval")
    assert scalars(train, "loss") == {10: 0.5, 20: 0.25}
    assert scalars(train, "learning_rate") == {10: 0.125}
    assert scalars(evaluated, "loss") == {10: 0.75}
    assert scalars(evaluated, "accuracy") == {10: 0.25}
    assert "accuracy" not in train.Tags()["tensors"]


def test_hyperparameters_come_with_the_evaluation(tmp_path):
    @gin.configurable(module="test_tensorboard")
    def tuned(rate=0.5, name="big", deep=True, none=None, sizes=(1, 2)):
        return rate, name, deep, none, sizes

    gin.parse_config("tuned.rate = %RATE\nRATE = 0.75")
    tuned()
    callback = make(tmp_path)
    callback.on_train_begin()
    callback.on_log(10, "train", {"loss": 0.5})
    callback.on_log(10, "eval", {"loss": 0.75})
    callback.on_train_end()
    callback.close()

    events = read(tmp_path, "eval")
    start = hparams_content(events, metadata.SESSION_START_INFO_TAG)
    values = {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in start.hparams.items()
    }
    assert values == {
        "batch_size": 64.0,
        "learning_rate": 0.125,
        # What was set, and no defaults.
        "tuned.rate": 0.75,
    }
    assert start.group_name == f"{tmp_path.name} ({tmp_path.parent})"
    end = hparams_content(events, metadata.SESSION_END_INFO_TAG)
    assert end.status == api_pb2.STATUS_SUCCESS
    text = read(tmp_path, "train").Tensors("operative_config")
    assert b"tuned.name = 'big'" in text[0].tensor_proto.string_val[0]


def test_steps_of_a_killed_run_are_hidden(tmp_path, monkeypatch):
    killed = make(tmp_path)
    killed.on_train_begin()
    for step in (10, 20, 30):
        killed.on_log(step, "train", {"loss": 1.0})
    # The next process starts later: event files are ordered by the second.
    later = tensorboard.time.time() + 5
    monkeypatch.setattr(tensorboard.time, "time", lambda: later)
    resumed = make(tmp_path, step=20)
    resumed.on_train_begin()
    killed.close()
    resumed.close()
    assert set(scalars(read(tmp_path, "train"), "loss")) == {10, 20}


def test_what_only_the_end_asked_for_is_taken_back(tmp_path):
    ended = make(tmp_path)
    ended.on_train_begin()
    for step in (10, 13):
        for split in ("train", "eval"):
            ended.on_log(step, split, {"loss": 1.0})
    ended.close()
    # Event files are ordered by the second.
    time.sleep(1.0 - time.time() % 1.0)
    longer = make(tmp_path, step=13, taken_back=["eval"])
    longer.on_train_begin()
    longer.on_log(20, "eval", {"loss": 2.0})
    longer.close()
    assert set(scalars(read(tmp_path, "train"), "loss")) == {10, 13}
    assert set(scalars(read(tmp_path, "eval"), "loss")) == {10, 20}


def test_missing_package_is_said_clearly(monkeypatch):
    tensorboard._plugin.cache_clear()
    module = "tensorboard.plugins.hparams.summary_v2"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        TensorBoard()


def test_with_the_trainer(tmp_path):
    values = training.train_with(TensorBoard(), tmp_path)
    train, evaluated = read(tmp_path, "train"), read(tmp_path, "eval")
    assert scalars(train, "loss")[20] == pytest.approx(values["loss"])
    assert scalars(train, "learning_rate")[20] == pytest.approx(0.001)
    assert scalars(evaluated, "loss")[20] == pytest.approx(values["val_loss"])
    start = hparams_content(evaluated, metadata.SESSION_START_INFO_TAG)
    assert start.hparams["batch_size"].number_value == 8
