import time

import pytest
import tensorflow as tf

from tests.plugins.strategies.sockets import answering, closed_port
from trainer import UserError
from trainer_plugins.strategies import tpu_address
from trainer_plugins.strategies.tpu import TPU
from trainer_plugins.strategies.tpu_address import require_tpu

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture(autouse=True)
def bare_host(monkeypatch):
    """No TPU in the environment, and short time-outs."""
    for name in (
        "TPU_NAME",
        "GCE_METADATA_HOST",
        "GCE_METADATA_IP",
        *tpu_address._ENVIRONMENT,
        tpu_address._ENDPOINTS,
        tpu_address._COLAB,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tpu_address, "_CONNECT_SECONDS", 1.0)


@pytest.mark.parametrize(
    ("tpu", "suggestion"),
    [
        ("10.0.0.2:8470", "grpc://10.0.0.2:8470"),
        ("http://10.0.0.2:8470", "grpc://10.0.0.2:8470"),
        ("grpc://10.0.0.2:8470/", "grpc://10.0.0.2:8470"),
        ("My TPU", "a name such as 'my-tpu-1'"),
    ],
)
def test_invalid_forms_are_refused(tpu, suggestion):
    with pytest.raises(UserError) as caught:
        require_tpu(tpu)
    message = str(caught.value)
    assert message.startswith(f"--tpu={tpu} is not the address of a TPU.")
    assert f"Did you mean {suggestion}" in message.replace("'grpc", "grpc")


def test_a_closed_port_is_named_at_once():
    port = closed_port()
    begin = time.monotonic()
    with pytest.raises(UserError, match=f"127.0.0.1:{port}: .*refused"):
        require_tpu(f"grpc://127.0.0.1:{port}")
    assert time.monotonic() - begin < 5


def test_a_port_that_never_answers_is_named_within_the_limit():
    with answering(None) as port:
        begin = time.monotonic()
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: timed out"):
            require_tpu(f"grpc://127.0.0.1:{port}")
        assert 0.9 < time.monotonic() - begin < 10


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x"])
def test_a_port_with_another_protocol_is_not_a_tpu(words):
    with answering(words) as port, pytest.raises(UserError, match=f":{port}:"):
        require_tpu(f"grpc://127.0.0.1:{port}")


def test_a_port_that_speaks_grpc_is_accepted():
    with answering(SETTINGS) as port:
        require_tpu(f"grpc://127.0.0.1:{port}")


def test_a_real_tensorflow_server_is_accepted():
    server = tf.distribute.Server.create_local_server()
    require_tpu(server.target.replace("localhost", "127.0.0.1"))


def test_each_of_several_addresses_must_answer():
    port = closed_port()
    with answering(SETTINGS) as first:
        tpu = f"grpc://127.0.0.1:{first},grpc://127.0.0.1:{port}"
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: "):
            require_tpu(tpu)


def test_a_port_need_not_be_given(monkeypatch):
    asked = []
    monkeypatch.setattr(
        tpu_address, "_require_answer", lambda *peer: asked.append(peer)
    )
    require_tpu("grpc://10.0.0.2")
    assert asked == [("grpc://10.0.0.2", "10.0.0.2", 8470)]


def test_a_name_needs_the_metadata_server(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{closed_port()}")
    with pytest.raises(UserError, match="metadata server 127.0.0.1 cannot be"):
        require_tpu("my-tpu")
    monkeypatch.delenv("GCE_METADATA_HOST")
    monkeypatch.setenv("GCE_METADATA_IP", "metadata.invalid")
    with pytest.raises(UserError, match="metadata.invalid .*grpc://HOST:PORT"):
        require_tpu("my-tpu")


def test_local_needs_one_host(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "10.0.0.1,10.0.0.2")
    with pytest.raises(UserError, match="slice of 2 hosts.*--tpu=NAME"):
        require_tpu("local")


@pytest.mark.parametrize("tpu", ["local", "my-tpu", "grpc://127.0.0.1:1"])
def test_one_host_of_a_slice_is_in_control(monkeypatch, tpu):
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    with pytest.raises(UserError, match="worker 3 .*start it on worker 0"):
        require_tpu(tpu)


def test_chips_that_only_the_environment_names_are_reported(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    monkeypatch.setattr(tpu_address, "local_chips", list)
    with pytest.raises(UserError, match="environment has TPU_WORKER_ID=0"):
        require_tpu("local")


@pytest.mark.parametrize(
    "variable",
    ["TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_ACCELERATOR_TYPE"],
)
def test_detects_what_the_environment_says(monkeypatch, variable):
    monkeypatch.setattr(tpu_address, "local_chips", list)
    assert TPU.detect() is None
    monkeypatch.setenv(variable, "my-tpu")
    assert TPU.detect().found == f"{variable}=my-tpu"


def test_a_notebooks_tpu_is_found(monkeypatch):
    monkeypatch.setattr(tpu_address, "local_chips", list)
    monkeypatch.setenv("COLAB_TPU_ADDR", "10.0.0.2:8470")
    assert TPU.detect().found == "COLAB_TPU_ADDR=10.0.0.2:8470"
    asked = []
    monkeypatch.setattr(
        tpu_address, "_require_answer", lambda *peer: asked.append(peer)
    )
    require_tpu(tpu_address.default_tpu())
    assert asked == [("grpc://10.0.0.2:8470", "10.0.0.2", 8470)]
    # A name that is set on purpose comes first.
    monkeypatch.setenv("TPU_NAME", "local")
    assert tpu_address.default_tpu() == "local"


def test_chips_on_the_pci_bus_are_found(monkeypatch, tmp_path):
    cards = {
        "0000:00:04.0": ("0x1ae0", "0x0063"),  # A v5e chip.
        "0000:00:05.0": ("0x1ae0", "0x0042"),  # A network card by Google.
        "0000:00:06.0": ("0x10de", "0x0063"),  # Another maker's.
    }
    for slot, (vendor, device) in cards.items():
        folder = tmp_path / slot
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    real = tpu_address.glob.glob
    monkeypatch.setattr(
        tpu_address.glob,
        "glob",
        lambda pattern: (
            real(str(tmp_path / "*" / "vendor")) if "pci" in pattern else []
        ),
    )
    assert tpu_address.local_chips() == ["0000:00:04.0 (v5e)"]
    assert TPU.detect().found == "TPU chips: 0000:00:04.0 (v5e)"
