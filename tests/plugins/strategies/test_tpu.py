"""The order of calls with a stand-in TPU, and real failures without a TPU."""

import json
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.plugins.strategies.sockets import answering, closed_port
from trainer import StartAgain, Trainer, UserError
from trainer.strategy.registry import find_strategy
from trainer_plugins.strategies import tpu as tpu_module
from trainer_plugins.strategies import tpu_address
from trainer_plugins.strategies.tpu import TPU
from trainer_plugins.strategies.tpu_holders import Holder


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
        tpu_address, "local_chips", lambda: ["/dev/accel0", "/dev/accel1"]
    )
    # Whatever else this machine may be doing.
    monkeypatch.setattr(tpu_module, "holders", list)
    return made


def test_order_of_calls_on_a_tpu_vm(calls):
    plugin = TPU(tpu="local")
    assert calls == []
    assert plugin.strategy is plugin.strategy
    plugin.close()
    plugin.close()
    assert calls == [
        ("resolve", "local"),
        ("initialize", "resolver"),
        ("strategy", "resolver"),
        ("shutdown", "resolver"),
    ]


def test_order_of_calls_by_name(calls, monkeypatch):
    with answering(b"") as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        plugin = TPU(tpu="my-slice")
        assert plugin.strategy is not None
    plugin.close()
    assert calls == [
        ("resolve", "my-slice"),
        ("connect", "resolver"),
        ("initialize", "resolver"),
        ("strategy", "resolver"),
        ("shutdown", "resolver"),
    ]


def test_order_of_calls_by_address(calls):
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    with answering(settings) as port:
        plugin = TPU(tpu=f"grpc://127.0.0.1:{port}")
        assert plugin.strategy is not None
    assert [call[0] for call in calls] == [
        "resolve",
        "connect",
        "initialize",
        "strategy",
    ]


def test_nothing_is_shut_down_that_did_not_start(calls, monkeypatch):
    def fail(resolver):
        raise tf.errors.NotFoundError(None, None, "TPUs not found.\nmore")

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    plugin = TPU(tpu="local")
    with pytest.raises(UserError, match="'local' does not start: TPUs not f"):
        plugin.create()
    plugin.close()
    assert calls == [("resolve", "local")]


def test_a_tpu_that_is_being_created_is_waited_for(calls, monkeypatch):
    errors = [
        RuntimeError('TPU "my-slice" is not yet ready; state: "CREATING"'),
        tf.errors.UnavailableError(None, None, "failed to connect"),
    ]
    started = tf.tpu.experimental.initialize_tpu_system

    def start(resolver):
        if errors:
            raise errors.pop(0)
        return started(resolver)

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", start)
    monkeypatch.setattr(tpu_address, "_require_metadata", lambda tpu: None)
    monkeypatch.setattr(tpu_module, "_POLL_SECONDS", 0.01)
    TPU(tpu="my-slice").create()
    assert [call[0] for call in calls] == [
        *["resolve", "connect"] * 3,
        *["initialize", "strategy"],
    ]


def test_a_tpu_that_is_never_ready_is_named(calls, monkeypatch):
    def fail(resolver):
        raise tf.errors.UnavailableError(None, None, "failed to connect")

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    monkeypatch.setattr(tpu_module, "_READY_SECONDS", 0.05)
    monkeypatch.setattr(tpu_module, "_POLL_SECONDS", 0.01)
    with pytest.raises(UserError, match="does not start: failed to connect"):
        TPU(tpu="local").create()
    assert len(calls) > 1


def test_the_line_that_says_what_is_wrong(calls, monkeypatch):
    """What TensorFlow 2.20 says on a host without chips, word for word."""
    message = (
        "Graph execution error:\n\n"
        "Detected at node disconnect_tpu_host/_1 defined at (most recent call "
        "last):\n<stack traces unavailable>\n"
        "RET_CHECK failure (tpu_node_interfaces.cc:432) *platform \n"
        "\t [[{{node disconnect_tpu_host/_1}}]]"
    )

    def fail(resolver):
        raise tf.errors.InternalError(None, None, message)

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    with pytest.raises(UserError, match="not start: RET_CHECK failure"):
        TPU(tpu="local").create()
    assert len(calls) == 1


def test_chips_that_are_in_use_are_waited_for(calls, monkeypatch):
    holder = Holder(7, "python other.py", "/dev/accel0")
    monkeypatch.setattr(tpu_module, "holders", lambda: [holder])
    monkeypatch.setattr(tpu_module, "_RELEASE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"process 7 \(python other.py\), wh"):
        TPU(tpu="local").create()
    # TensorFlow found no chip when it was imported: only a new process can.
    found = iter([[holder], []])
    monkeypatch.setattr(tpu_module, "holders", lambda: next(found))
    monkeypatch.setattr(tpu_module, "_RELEASE_SECONDS", 60.0)
    with pytest.raises(StartAgain, match="in use by process 7"):
        TPU(tpu="local").create()
    assert calls == []


def test_a_failing_shutdown_does_not_hide_the_runs_outcome(calls, monkeypatch):
    def fail(resolver):
        calls.append("shutdown")
        raise tf.errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr(tf.tpu.experimental, "shutdown_tpu_system", fail)
    plugin = TPU(tpu="local")
    assert plugin.strategy is not None
    plugin.close()
    assert calls[-1] == "shutdown"


def test_describes_the_topology(calls):
    described = TPU(tpu="local").describe()
    assert json.loads(json.dumps(described)) == {
        "strategy": "tpu",
        "replicas": 1,
        "devices": ["/job:localhost/replica:0/task:0/device:CPU:0"],
        "tpu": "local",
        "topology": {
            "mesh_shape": [2, 2, 1, 2],
            "hosts": 2,
            "cores_per_host": 4,
        },
    }


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


def test_a_run_on_the_stand_in_trains_and_evaluates(calls):
    trainer = trainer_on(TPU(tpu="local"))
    values = trainer.train_and_evaluate(2)
    assert trainer.batches("train").steps_per_epoch == 1
    prediction = trainer.model(np.ones((1, 3), "float32"))
    expected = (float(prediction[0, 0]) - 1) ** 2
    assert values["val_loss"] == pytest.approx(expected, abs=1e-5)


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
    return tf.data.Dataset.from_tensor_slices((x, tf.ones(16))).batch(16)


def test_strings_for_evaluation_alone_are_refused(calls):
    trainer = trainer_on(
        TPU(tpu="local"),
        data=lambda split: ({"word": np.full((16, 3), "a")}, np.ones(16)),
        model=takes_text,
    )
    with pytest.raises(UserError, match="part 0 / word holds strings"):
        trainer.evaluate()


def test_python_in_the_input_of_a_remote_tpu_is_refused(calls, monkeypatch):
    def generated(split):
        signature = tf.TensorSpec([3], tf.float32)
        made = tf.data.Dataset.from_generator(
            lambda: iter([(np.ones(3), np.ones(3))] * 16),
            output_signature=(signature, signature),
        )
        return made.batch(16, drop_remainder=True)

    monkeypatch.setattr(tpu_address, "_require_metadata", lambda tpu: None)
    trainer = trainer_on(TPU(tpu="my-slice"), data=generated)
    with pytest.raises(UserError, match="hosts, which cannot run it"):
        trainer.train(1)


def test_a_lost_tpu_means_start_again(calls):
    trainer = trainer_on(TPU(tpu="local"))
    trainer.train(1)
    runner = trainer._run.train_runner

    def lost(*arguments):
        raise tf.errors.UnavailableError(None, None, "Socket closed\nmore")

    runner._loop = lost
    with pytest.raises(StartAgain, match="the TPU was lost: Socket closed$"):
        runner(None, 1)


def test_without_a_tpu_the_flags_are_named():
    with pytest.raises(UserError) as caught:
        find_strategy("tpu").create()
    message = str(caught.value)
    for part in ("--tpu=local", "--tpu=NAME", "--tpu=grpc://HOST:PORT"):
        assert part in message
    assert "--strategy=mirrored --virtual_devices=4" in message
    assert len(message.splitlines()) <= 3


_CONNECT = """
import tensorflow as tf
from trainer_plugins.strategies.tpu import TPU
from trainer_plugins.strategies.tpu_holders import Holder
from trainer import UserError

server = tf.distribute.Server({"worker": ["127.0.0.1:PORT"]}, "worker")
plugin = TPU(tpu=server.target)
try:
    plugin.create()
except UserError as error:
    print(error, flush=True)
"""


def test_a_tensorflow_server_without_a_tpu_is_told_apart(root):
    # In another process, because it stays connected to the server.
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            _CONNECT.replace("PORT", str(closed_port())),
        ],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            message = process.stdout.readline()
        finally:
            process.kill()
    assert "does not start: " in message
    assert "TPU" in message.partition("does not start: ")[2]
