"""The order of calls with a stand-in TPU, and real failures without a TPU."""

import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.plugins.strategies.sockets import answering, closed_port
from trainer import StartAgain, Trainer, UserError
from trainer_plugins import TPU
from trainer_plugins.strategies.tpu import host, strategy


@pytest.fixture(autouse=True)
def no_tpu_environment(monkeypatch):
    for name in (
        "TPU_NAME",
        "TPU_WORKER_ID",
        "TPU_WORKER_HOSTNAMES",
        "TPU_ACCELERATOR_TYPE",
        "TPU_LOAD_LIBRARY",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
        "COLAB_TPU_ADDR",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def calls(monkeypatch):
    """Every call that would reach a chip, in order."""
    made = []
    topology = types.SimpleNamespace(
        mesh_shape=np.array([2, 2, 1, 2]), num_tasks=2, num_tpus_per_task=4
    )

    def record(name, result):
        def call(*arguments, **options):
            made.append((name, *arguments, *options.values()))
            return result

        return call

    monkeypatch.setattr(
        tf.distribute.cluster_resolver,
        "TPUClusterResolver",
        record("resolve", "resolver"),
    )
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", record("connect", None)
    )
    experimental = tf.tpu.experimental
    monkeypatch.setattr(
        experimental, "initialize_tpu_system", record("initialize", topology)
    )
    monkeypatch.setattr(
        experimental, "shutdown_tpu_system", record("shutdown", None)
    )
    monkeypatch.setattr(
        tf.distribute,
        "TPUStrategy",
        record("strategy", tf.distribute.OneDeviceStrategy("cpu:0")),
    )
    monkeypatch.setattr(
        host, "local_chips", lambda: ["/dev/accel0", "/dev/accel1"]
    )
    # Whatever else this machine may be doing.
    monkeypatch.setattr(host, "holders", list)
    return made


def test_chips_that_are_in_use_are_waited_for(calls, monkeypatch):
    holder = "process 7 (python other.py), which holds /dev/accel0"
    monkeypatch.setattr(host, "holders", lambda: [holder])
    monkeypatch.setattr(strategy, "_RELEASE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"process 7 \(python other.py\), wh"):
        TPU(tpu="local").create()
    # TensorFlow found no chip when it was imported: only a new process can.
    found = iter([[holder], []])
    monkeypatch.setattr(host, "holders", lambda: next(found))
    monkeypatch.setattr(strategy, "_RELEASE_SECONDS", 60.0)
    with pytest.raises(StartAgain, match="in use by process 7"):
        TPU(tpu="local").create()
    assert calls == []


def regression(split):
    x = np.ones((24, 3), "float32")
    return x, x[:, :1]


def trainer_on(plugin, **options):
    defaults = {
        "model": lambda: keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1)]
        ),
        "loss": "mse",
        "data": regression,
        "batch_size": 16,
    }
    return Trainer(**{**defaults, **options}, strategy=plugin)


def takes_text():
    text = keras.Input((3,), dtype="string", name="word")
    numbers = keras.ops.cast(keras.layers.Hashing(7)(text), "float32")
    return keras.Model(text, keras.layers.Dense(1)(numbers))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"precision": "mixed_float16"},
            "computes in float16: a TPU's 16-bit format is bfloat16",
        ),
        ({"jit_compile": True}, "jit_compile: a TPU step is always compiled"),
        (
            {
                "data": lambda split: (np.full((16, 3), "a"), np.ones(16)),
                "model": takes_text,
            },
            "part 0 holds strings, which a TPU cannot take",
        ),
        (
            {"data": lambda split: ragged()},
            "part 0 of a batch is a RaggedTensor.*Make it dense",
        ),
        (
            {"model": lambda: keras.Sequential([Python()])},
            "EagerPyFunc in the layer 'python' .*runs Python code.*keras.ops",
        ),
    ],
)
def test_unsuitable_steps_and_data_are_refused(calls, options, message):
    trainer = trainer_on(TPU(tpu="local"), **options)
    with pytest.raises(UserError, match=message):
        trainer.train(1)
    assert trainer.step == 0


class Python(keras.layers.Layer):
    def call(self, x):
        made = tf.py_function(lambda value: value, [x], tf.float32)
        return tf.reduce_sum(tf.ensure_shape(made, x.shape), 1, keepdims=True)


def ragged():
    x = tf.ragged.constant([[1.0], [1.0, 2.0]] * 8)
    rows = tf.data.Dataset.from_tensor_slices((x, tf.ones(16)))
    return rows.batch(16, drop_remainder=True)


def test_a_lost_tpu_means_start_again(calls):
    trainer = trainer_on(TPU(tpu="local"))
    trainer.train(1)
    runner = trainer._run.train_runner

    def lost(*arguments):
        raise tf.errors.UnavailableError(None, None, "Socket closed\nmore")

    runner._loop = lost
    with pytest.raises(StartAgain, match="the TPU was lost: Socket closed$"):
        runner(None, 1)


def refused(tpu):
    with pytest.raises(UserError) as caught:
        TPU(tpu=tpu).create()
    message = str(caught.value)
    assert len(message.splitlines()) <= 3
    return message


def test_an_address_that_does_not_answer_is_said_at_once(monkeypatch):
    port = closed_port()
    with answering(b"") as first:
        tpu = f"grpc://127.0.0.1:{first},grpc://127.0.0.1:{port}"
        assert re.search(f"127.0.0.1:{port}: .*refused", refused(tpu))
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
    assert "names are known on Google Cloud only" in refused("my-tpu")


def test_one_process_controls_a_slice(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "10.0.0.1,10.0.0.2")
    assert "slice of 2 hosts" in refused("local")
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    assert "start it on worker 0" in refused("my-tpu")


def test_what_the_environment_says_is_found(monkeypatch):
    monkeypatch.setattr(host, "local_chips", list)
    assert TPU.detect() is None
    monkeypatch.setenv("COLAB_TPU_ADDR", "10.0.0.2:8470")
    assert TPU.detect().found == "COLAB_TPU_ADDR=10.0.0.2:8470"
    assert host.default_tpu() == "grpc://10.0.0.2:8470"
    # A name that is set on purpose comes first.
    monkeypatch.setenv("TPU_NAME", "local")
    assert TPU.detect().found == "TPU_NAME=local"
    assert host.default_tpu() == "local"
    assert "environment has TPU_NAME=local" in refused(None)


# As TensorFlow's library for TPUs does it.
_HOLD = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_process_that_uses_the_chips_is_found(tmp_path, monkeypatch):
    path = str(tmp_path / "lockfile")
    monkeypatch.setattr(host, "LOCK_FILE", path)
    assert host.holders() == []
    command = [sys.executable, "-c", _HOLD, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        (found,) = host.holders()
        process.kill()
    assert found.startswith(f"process {process.pid} (")
    assert found.endswith(f"which holds {path}")
    # A process that was killed leaves its lock file, but not its lock.
    assert host.holders() == []
