"""What the bytes of a result depend on, besides the code.

TensorFlow, oneDNN and XLA choose their kernels by what the processor offers,
and each choice rounds in its own way. Only where all of this is the same may
equal bytes be asked for; how many cores there are was tried, and is no part.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import platform

_PACKAGES = ("keras", "numpy", "tensorflow", "tensorflow-cpu")
_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "XLA_FLAGS")
_FIELDS = ("vendor_id", "cpu family", "model", "model name")
_VECTOR_FLAGS = ("sse", "ssse", "avx", "fma", "amx", "f16c")


def fingerprint():
    """Facts of this machine and its packages, by name."""
    found = {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        **_processor(),
    }
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name in _VARIABLES:
        if name in os.environ:
            found[name] = os.environ[name]
    return found


def _processor():
    """The first processor's kind, and a hash of its vector instructions."""
    path = pathlib.Path("/proc/cpuinfo")
    if not path.exists():
        return {"processor": platform.processor()}
    first = path.read_text().partition("\n\n")[0]
    fields = {
        name.strip(): value.strip()
        for name, _, value in (
            line.partition(":") for line in first.splitlines()
        )
    }
    vector = sorted(
        flag
        for flag in fields.get("flags", "").split()
        if flag.startswith(_VECTOR_FLAGS)
    )
    return {
        **{name: fields.get(name, "") for name in _FIELDS},
        "vector instructions": hashlib.sha256(
            " ".join(vector).encode()
        ).hexdigest()[:16],
    }
