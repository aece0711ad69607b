"""The TPU of this host or of others: its address, its chips, who uses them.

TensorFlow's library for TPUs lets one process at a time use the chips of a
host: it locks a file when TensorFlow is imported. Where that fails, TensorFlow
continues without a TPU, and reports only later that there is none.
"""

import glob
import os
import pathlib
import re
import socket

from trainer import UserError

LOCK_FILE = "/tmp/libtpu_lockfile"
HERE_INSTEAD = (
    "To run here, use --strategy=default, or --strategy=mirrored "
    "--virtual_devices=4."
)
# TensorFlow itself would retry for minutes.
_CONNECT_SECONDS = 10.0
_DEFAULT_PORT = 8470  # TensorFlow's own for an address that has none.
_ENDPOINT = re.compile(r"grpc://([^:/,\s]+)(?::(\d+))?")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# The variable that GKE sets in every container that has a TPU.
_ENVIRONMENT = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")
_ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
# Of notebooks whose TPU is on another host, without `grpc://`.
_COLAB = "COLAB_TPU_ADDR"
_PCI = "/sys/bus/pci/devices"
_PCI_VENDOR = "0x1ae0"  # Google, which makes network cards too.
# v2 and v3, v4, v5p, v5e, v6e, v7x.
_PCI_DEVICES = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}


def default_tpu() -> str:
    """Returns the TPU that the environment names, else `"local"`."""
    named = os.environ.get("TPU_NAME") or os.environ.get(_ENDPOINTS)
    colab = os.environ.get(_COLAB)
    return named or (f"grpc://{colab}" if colab else "local")


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
    """Returns this host's TPU chips: device files, or PCI slots."""
    files = sorted(glob.glob("/dev/accel[0-9]*"))
    # Since v5e the chips are VFIO devices, but so are some other devices. The
    # environment tells them apart.
    if not files and any(os.environ.get(name) for name in _ENVIRONMENT):
        files = sorted(glob.glob("/dev/vfio/[0-9]*"))
    return files or [
        os.path.basename(slot)
        for slot in sorted(glob.glob(f"{_PCI}/*"))
        if _text(f"{slot}/vendor").strip() == _PCI_VENDOR
        and _text(f"{slot}/device").strip() in _PCI_DEVICES
    ]


def require_tpu(tpu: str) -> None:
    """Finds errors within seconds that TensorFlow finds in minutes or never.

    Args:
        tpu: `"local"`, a name, or one or more `"grpc://host:port"` separated
            by commas.

    Raises:
        UserError: it has another form, does not exist, or does not answer.
    """
    _require_controller(tpu)
    if tpu == "local":
        _require_chips()
    elif ":" in tpu:
        for endpoint in tpu.split(","):
            match = _ENDPOINT.fullmatch(endpoint)
            if match is None:
                bare = endpoint.rpartition("://")[2].strip("/")
                raise UserError(_no_such_form(endpoint, f"'grpc://{bare}'"))
            _require_answer(tpu, match[1], int(match[2] or _DEFAULT_PORT))
    elif _NAME.fullmatch(tpu):
        # TensorFlow looks a name up there.
        host = (
            os.environ.get("GCE_METADATA_HOST")
            or os.environ.get("GCE_METADATA_IP")
            or "metadata.google.internal"
        )
        name, _, port = host.partition(":")
        _require_answer(
            f"{tpu} (names are known on Google Cloud only)",
            name,
            int(port or 80),
        )
    else:
        raise UserError(_no_such_form(tpu, "a name such as 'my-tpu-1'"))


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


def _no_such_form(tpu: str, nearest: str) -> str:
    return (
        f"--tpu={tpu} is not the address of a TPU. Did you mean {nearest}? "
        "Valid: local, a TPU's name, grpc://HOST:PORT (several separated by "
        "commas)."
    )


def _require_answer(tpu: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"--tpu={tpu} cannot be reached: {host}:{port}: {error}.\n"
            f"{HERE_INSTEAD}"
        ) from None


def holders() -> list[str]:
    """Describes the other process that has locked this host's chips, if any."""
    try:
        status = os.stat(LOCK_FILE)
    except OSError:
        return []
    # Such as "1: POSIX  ADVISORY  WRITE 8508 fe:00:2151975 0 EOF".
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    held = [line.split() for line in _text("/proc/locks").splitlines()]
    # A line of one who waits has "->" in the second column.
    found = {
        int(fields[4])
        for fields in held
        if fields[5:6] == [f"{device}:{status.st_ino}"] and fields[1] != "->"
    }
    return [
        f"process {pid} ({_command(pid)}), which holds {LOCK_FILE}"
        for pid in sorted(found - {os.getpid()})
    ]


def _command(pid: int) -> str:
    line = " ".join(_text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0"))
    return line if len(line) <= 60 else f"{line[:60]}..."


def _text(path: str) -> str:
    """The text of a file of the system; empty if it cannot be read."""
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""
