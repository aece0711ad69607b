"""A preflight on a TPU VM, and who uses its chips."""

import importlib.metadata
import re
import subprocess
import sys

import pytest

from trainer import UserError
from trainer_plugins.strategies import tpu_holders, tpu_preflight

# As TensorFlow's library for TPUs does it.
_HOLD = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
if sys.argv[2] == "lock":
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Starts a process that holds a lock file, or a chip; both are files."""
    lock, chip = tmp_path / "lockfile", tmp_path / "accel0"
    monkeypatch.setattr(tpu_holders, "LOCK_FILE", str(lock))
    monkeypatch.setattr(tpu_holders, "_CHIP", re.compile(re.escape(str(chip))))
    started = []

    def start(how):
        path = {"lock": lock, "open": chip}[how]
        command = [sys.executable, "-c", _HOLD, str(path), how]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"held\n"
        return started[-1], str(path)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("how", ["lock", "open"])
def test_the_process_that_uses_a_chip_is_found(hold, how):
    assert tpu_holders.holders() == []
    process, path = hold(how)
    (found,) = tpu_holders.holders()
    assert (found.pid, found.file) == (process.pid, path)
    assert "python" in found.command
    assert str(found).startswith(f"process {process.pid} (")
    process.kill()
    process.wait()
    assert tpu_holders.holders() == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_file_that_is_only_there_is_held_by_nobody(hold, tmp_path):
    """A process that was killed leaves its lock file, but not its lock."""
    process, path = hold("lock")
    process.kill()
    process.wait()
    assert (tmp_path / "lockfile").exists()
    assert tpu_holders.holders() == []


@pytest.fixture
def host(monkeypatch):
    """A TPU VM where all is well; returns what is installed there."""
    installed = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.14"}
    monkeypatch.setattr(tpu_preflight, "_version", installed.get)
    monkeypatch.setattr(tpu_preflight, "require_tpu", lambda tpu: None)
    monkeypatch.setattr(tpu_preflight, "local_chips", lambda: ["/dev/accel0"])
    monkeypatch.setattr(tpu_preflight, "holders", list)
    monkeypatch.delenv("TPU_LOAD_LIBRARY", raising=False)
    monkeypatch.setenv("TPU_NAME", "local")
    return installed


def preflight(capsys, *arguments):
    code = tpu_preflight.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    return code, [line[5:] for line in lines if line.startswith("BAD ")], lines


def test_a_host_where_all_is_well(host, tmp_path, capsys):
    folder = tmp_path / "run"
    code, bad, lines = preflight(capsys, f"--model_dir={folder}")
    assert (code, bad) == (0, [])
    assert "TPU local: /dev/accel0" in lines[3]
    assert lines[-1].endswith("run can be written")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"tensorflow-cpu": "2.21.0"}, "tensorflow-cpu 2.21.0: a TPU needs"),
        ({}, "no TensorFlow: a TPU needs tensorflow-tpu"),
        (
            {"tensorflow-tpu": "2.20.0", "tensorflow": "2.21.0"},
            "tensorflow-tpu 2.20.0, tensorflow 2.21.0: a TPU needs",
        ),
        (
            {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.52"},
            "libtpu 0.0.52: tensorflow-tpu 2.20 works with 0.0.14 to 0.0.31",
        ),
        ({"tensorflow-tpu": "2.20.0"}, "libtpu is not installed"),
    ],
)
def test_packages_that_do_not_fit(host, capsys, installed, said):
    host.clear()
    host.update(installed)
    code, bad, _ = preflight(capsys, "--model_dir=gs://bucket/run")
    assert code == 2
    assert any(line.startswith(said) for line in bad)
    # TensorFlow is not imported then: it may end the process.
    assert bad[-1] == "gs://bucket/run has not been tried"


def test_a_tpu_that_is_missing_or_in_use(host, capsys, monkeypatch):
    holder = tpu_holders.Holder(7, "python other.py", "/dev/accel0")
    monkeypatch.setattr(tpu_preflight, "holders", lambda: [holder])
    code, bad, _ = preflight(capsys)
    assert (code, bad) == (2, [f"in use by {holder}"])

    def missing(tpu):
        raise UserError("There is no TPU on this host.\nTo run here, ...")

    monkeypatch.setattr(tpu_preflight, "require_tpu", missing)
    code, bad, _ = preflight(capsys)
    assert (code, bad) == (2, ["There is no TPU on this host."])


def test_a_folder_that_cannot_be_written(host, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, bad, _ = preflight(capsys, f"--model_dir={tmp_path}/file/run")
    assert code == 2
    assert "file/run cannot be written" in bad[0]


def test_the_extra_names_a_libtpu_that_fits(root):
    text = (root / "setup.cfg").read_text()
    assert f"\n    libtpu=={tpu_preflight.OLDEST_LIBTPU}\n" in text


def test_versions_are_those_of_installed_packages():
    expected = importlib.metadata.version("keras")
    assert tpu_preflight._version("keras") == expected
    assert tpu_preflight._version("no-such-package") is None
