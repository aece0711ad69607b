"""docs/tpu_vm.sh, with a stand-in for `gcloud` that records its calls."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "docs" / "tpu_vm.sh"
# Answers are taken line by line from files; the last one stays.
GCLOUD = r"""#!/usr/bin/env bash
printf '%q ' "$@" >>"$RECORD/calls"
echo >>"$RECORD/calls"
answer() {
  head -n 1 "$RECORD/$1"
  [[ $(wc -l <"$RECORD/$1") -le 1 ]] || sed -i 1d "$RECORD/$1"
}
case "$*" in
  *" queued-resources create "*) exit "$(answer create)" ;;
  *" queued-resources describe "*) answer states ;;
  *" tpu-vm describe "*) answer hosts ;;
  *"cat run.code"*) answer codes ;;
  *" scp "*run.sh*) cp "$5" "$RECORD/run.sh" ;;
  *" scp "*) tar -tzf "$5" >"$RECORD/sent" ;;
esac
"""


class Cloud:
    def __init__(self, folder):
        self.folder = folder
        (folder / "bin").mkdir()
        gcloud = folder / "bin" / "gcloud"
        gcloud.write_text(GCLOUD)
        gcloud.chmod(0o755)
        self.answers(states="ACTIVE", hosts="10.0.0.1", codes="0")
        self.answers(create=0)

    def answers(self, **files):
        for name, lines in files.items():
            (self.folder / name).write_text(f"{lines}\n")

    def do(self, *arguments, **environment):
        return subprocess.run(
            [SCRIPT, *arguments],
            env=os.environ
            | {
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "RECORD": str(self.folder),
                "TMPDIR": str(self.folder),
                "NAME": "my-tpu",
                "ZONE": "us-west4-a",
                "TYPE": "v5litepod-8",
                "MODEL_DIR": "gs://bucket/run",
                "POLL_SECONDS": "0",
            }
            | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self):
        lines = (self.folder / "calls").read_text().splitlines()
        return [shlex.split(line.replace("$'", "'")) for line in lines]

    def verbs(self):
        """What was called, without asking again and again."""
        found = []
        for _, _, group, verb, *_ in self.calls():
            what = f"{group} {verb}"
            if verb != "describe" and found[-1:] != [what]:
                found.append(what)
        return found


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


RUN = ["tpu-vm scp", "tpu-vm ssh"]
DELETE = "queued-resources delete"
# Copy and install; the run's script, and its start.
ONCE = ["queued-resources create", *RUN, *RUN]


def test_from_creating_a_tpu_to_deleting_it(cloud):
    cloud.answers(states="ACCEPTED\nPROVISIONING\nACTIVE", codes="\n\n0")
    done = cloud.do("all", "--gin_file=experiments/tpu_mnist.gin")
    assert done.returncode == 0, done.stderr
    assert "my-tpu: PROVISIONING" in done.stdout
    assert cloud.verbs() == [*ONCE, DELETE]
    create, *others = cloud.calls()
    assert create == [
        *("compute", "tpus", "queued-resources", "create", "my-tpu"),
        "--node-id=my-tpu",
        "--accelerator-type=v5litepod-8",
        "--runtime-version=v2-alpha-tpuv5-lite",
        "--zone=us-west4-a",
    ]
    assert all(
        call[-1] == "--zone=us-west4-a" or "ssh" in call for call in others
    )
    assert {"--force", "--quiet"} < set(others[-1])
    # Neither the archive nor the script of the run stays here.
    assert not list(cloud.folder.glob("tmp.*"))
    sent = (cloud.folder / "sent").read_text().splitlines()
    assert {"setup.cfg", "experiments/tpu_mnist.gin"} < set(sent)
    assert not any("grpc" in word for call in others for word in call)


def test_a_preempted_tpu_is_created_again(cloud):
    cloud.answers(states="ACTIVE\nACTIVE\nSUSPENDED\nACTIVE", codes="\n0")
    done = cloud.do("all", "--train_steps=10")
    assert done.returncode == 0, done.stderr
    # Deleted, created, installed and started.
    again = ["queued-resources create", *RUN, *RUN]
    assert cloud.verbs() == [*ONCE, DELETE, *again, DELETE]


@pytest.mark.parametrize("hosts", ["10.0.0.1", "10.0.0.1 10.0.0.2"])
def test_the_command_that_runs_there(cloud, hosts):
    cloud.answers(hosts=hosts)
    flags = ["--gin.Trainer.loss='mse'", "--run.name=a b", "$HOME"]
    done = cloud.do("run", *flags)
    assert done.returncode == 0, done.stderr
    host = cloud.folder / "host"
    (host / "venv" / "bin").mkdir(parents=True)
    (host / "trainer").mkdir()
    python = host / "venv" / "bin" / "python"
    python.write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n'
        'echo "library ${TPU_LOAD_LIBRARY:-}" \nexit 75\n'
    )
    python.chmod(0o755)
    # Another test of this process may have connected to a TPU's stand-in.
    environ = {k: v for k, v in os.environ.items() if k != "TPU_LOAD_LIBRARY"}
    subprocess.run(
        ["bash", cloud.folder / "run.sh"], cwd=host, check=True, env=environ
    )
    *said, library = (host / "run.log").read_text().splitlines()
    several = " " in hosts
    tpu = "grpc://10.0.0.1:8470,grpc://10.0.0.2:8470" if several else "local"
    assert said == [
        *("-m", "trainer.launch", "--num_workers=1", "--"),
        "--strategy=tpu",
        f"--tpu={tpu}",
        "--model_dir=gs://bucket/run",
        *flags,
    ]
    assert library == f"library {'0' if several else ''}"
    assert (host / "run.code").read_text() == "75\n"


def test_what_is_missing_is_named(cloud):
    assert "docs/tpu_vm.sh all" in cloud.do("help").stderr
    assert cloud.do("help").returncode == 2
    done = cloud.do("create", NAME="")
    assert done.returncode != 0
    assert "NAME: is the name of the TPU" in done.stderr
    done = cloud.do("create", TYPE="v99-8")
    assert done.returncode == 2
    assert "TYPE=v99-8: set VERSION" in done.stderr
    assert not (cloud.folder / "calls").exists()


def test_the_script_is_clean():
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run([shellcheck, SCRIPT], check=True)
    text = SCRIPT.read_text()
    # Its help names each of its commands.
    commands = re.search(r"in\n  ([\w |]+)\) ;;", text)[1].split(" | ")
    for command in commands:
        assert re.search(rf"^#   {command}\b", text, re.MULTILINE)
        assert f"\n{command}() {{" in text
