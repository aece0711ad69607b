"""Finds and checks the address of a TPU."""

import glob
import os
import pathlib
import re
import socket

from trainer import UserError

HERE_INSTEAD = (
    "To run here, use --strategy=default, or --strategy=mirrored "
    "--virtual_devices=4."
)
# TensorFlow itself would retry for minutes.
_CONNECT_SECONDS = 10.0
_DEFAULT_PORT = 8470  # TensorFlow's own for an address that has none.
_ENDPOINT = re.compile(r"grpc://([^:/,\s]+)(?::(\d+))?")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# What GKE sets in every container that has a TPU.
_ENVIRONMENT = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")
_ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
# Of notebooks whose TPU is on another host, without `grpc://`.
_COLAB = "COLAB_TPU_ADDR"
_PCI_VENDOR = "0x1ae0"  # Google, which makes network cards too.
_PCI_DEVICES = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "v7x",
}
# An HTTP/2 client's connection preface with an empty SETTINGS frame. A gRPC
# server answers with a SETTINGS frame (RFC 9113, section 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)
_FRAME_HEADER, _FRAME_TYPE, _SETTINGS = 9, 3, 4


def default_tpu() -> str:
    """Returns the TPU that the environment names, else `"local"`."""
    for variable in ("TPU_NAME", _ENDPOINTS):
        if os.environ.get(variable):
            return os.environ[variable]
    if os.environ.get(_COLAB):
        return f"grpc://{os.environ[_COLAB]}"
    return "local"


def found_tpu() -> str | None:
    """Returns the sign of a TPU on this host; `None` if there is none."""
    chips = local_chips()
    if chips:
        return f"TPU chips: {', '.join(chips)}"
    for variable in ("TPU_NAME", _ENDPOINTS, _COLAB, *_ENVIRONMENT):
        if os.environ.get(variable):
            return f"{variable}={os.environ[variable]}"
    return None


def local_chips() -> list[str]:
    """Returns this host's TPU chips: device files, or PCI entries."""
    files = sorted(glob.glob("/dev/accel[0-9]*"))
    if files:
        return files
    # Since v5e the chips are VFIO devices, but so are some other devices. The
    # environment tells them apart.
    if any(os.environ.get(variable) for variable in _ENVIRONMENT):
        files = sorted(glob.glob("/dev/vfio/[0-9]*"))
    return files or _pci_chips()


def require_tpu(tpu: str) -> None:
    """Checks within seconds what TensorFlow would notice in minutes or never.

    Args:
        tpu: `"local"`, a name, or one or more `"grpc://host:port"` separated
            by commas.

    Raises:
        UserError: it has another form, does not exist, or does not answer.
    """
    _require_controller(tpu)
    if tpu == "local":
        _require_chips()
    elif "://" in tpu or ":" in tpu:
        for endpoint in tpu.split(","):
            _require_answer(tpu, *_parse(endpoint))
    elif _NAME.fullmatch(tpu):
        _require_metadata(tpu)
    else:
        raise UserError(_no_such_form(tpu, "a name such as 'my-tpu-1'"))


def _pci_chips() -> list[str]:
    chips = []
    for vendor in sorted(glob.glob("/sys/bus/pci/devices/*/vendor")):
        device = pathlib.Path(vendor).with_name("device")
        try:
            if pathlib.Path(vendor).read_text().strip() != _PCI_VENDOR:
                continue
            kind = _PCI_DEVICES.get(device.read_text().strip())
        except OSError:
            continue
        if kind:
            chips.append(f"{device.parent.name} ({kind})")
    return chips


def _require_controller(tpu: str) -> None:
    """Checks that this is the one process that controls a slice's hosts."""
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    number = os.environ.get("TPU_WORKER_ID", "0")
    if len(hosts) > 1 and tpu == "local":
        raise UserError(
            f"This host is worker {number} of a slice of {len(hosts)} hosts, "
            "and --tpu=local only sees this host's chips. Start the run once, "
            "on worker 0, with --tpu=NAME, the slice's name."
        )
    if number not in ("", "0"):
        raise UserError(
            f"This host is worker {number} of its slice (TPU_WORKER_ID). One "
            "process controls all hosts: start it on worker 0 only."
        )


def _require_chips() -> None:
    if local_chips():
        return
    found = found_tpu()
    hint = f", though the environment has {found}" if found else ""
    raise UserError(
        "There is no TPU on this host (no /dev/accel* or /dev/vfio/* device)"
        f"{hint}. On a Cloud TPU VM use --tpu=local, elsewhere --tpu=NAME or "
        f"--tpu=grpc://HOST:PORT.\n{HERE_INSTEAD}"
    )


def _parse(endpoint: str) -> tuple[str, int]:
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        bare = endpoint.rpartition("://")[2].strip("/")
        raise UserError(_no_such_form(endpoint, f"'grpc://{bare}'"))
    return match[1], int(match[2] or _DEFAULT_PORT)


def _no_such_form(tpu: str, nearest: str) -> str:
    return (
        f"--tpu={tpu} is not the address of a TPU. Did you mean {nearest}? "
        "Valid: local, a TPU's name, grpc://HOST:PORT (several separated by "
        "commas)."
    )


def _require_answer(tpu: str, host: str, port: int) -> None:
    """Checks that a gRPC server answers, by the start of an HTTP/2 session."""
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS) as peer:
            peer.sendall(_PREFACE)
            # A file reads on until the header is complete; `recv` may return a
            # part.
            with peer.makefile("rb") as answers:
                answer = answers.read(_FRAME_HEADER)
    except OSError as error:
        raise _unreachable(tpu, host, port, error) from None
    if answer[_FRAME_TYPE : _FRAME_TYPE + 1] != bytes([_SETTINGS]):
        raise _unreachable(tpu, host, port, "its answer is not gRPC")


def _require_metadata(tpu: str) -> None:
    """Checks for the metadata server, which TensorFlow needs for a name."""
    host = (
        os.environ.get("GCE_METADATA_HOST")
        or os.environ.get("GCE_METADATA_IP")
        or "metadata.google.internal"
    )
    host, _, port = host.partition(":")
    try:
        socket.create_connection(
            (host, int(port or 80)), _CONNECT_SECONDS
        ).close()
    except OSError as error:
        raise UserError(
            f"--tpu={tpu}: names are known on Google Cloud only, and its "
            f"metadata server {host} cannot be reached: {error}. Elsewhere "
            f"use --tpu=grpc://HOST:PORT.\n{HERE_INSTEAD}"
        ) from None


def _unreachable(tpu: str, host: str, port: int, why: object) -> UserError:
    return UserError(
        f"--tpu={tpu} cannot be reached: {host}:{port}: {why}.\n{HERE_INSTEAD}"
    )
