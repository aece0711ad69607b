"""What a power cut may lose: nothing that a checkpoint or "done" vouches for.

A library that is loaded first notes what is flushed to the disk and what is
renamed, in order. A file that has not been flushed may be empty afterwards.
"""

import pathlib
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(__file__).with_name("ordered.c")


@pytest.fixture
def order(tmp_path):
    """Returns what a command has done, as (what, path, path)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    made = tmp_path / "ordered.so"
    command = ["cc", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    log = tmp_path / "order"

    def read():
        lines = log.read_text().splitlines()
        return [tuple(line.split("\t")) for line in lines]

    read.environ = {"LD_PRELOAD": str(made), "ORDER_LOG": str(log)}
    return read


def test_what_is_vouched_for_is_on_the_disk_before(runs, order):
    callbacks = "@JsonLines(), @CSV(), @TensorBoard(), @Export()"
    runs.train(
        f"--gin.run.callbacks=[{callbacks}, @Checkpoint()]",
        "--allow_unused_bindings",
        # A save in the background may flush what is logged after its step.
        "--gin.Checkpoint.asynchronous=False",
        environ=order.environ,
    ).must_end(0)
    home, events = runs.model_dir, order()

    def flushed(*, after, before):
        return {p for what, p, _ in events[after:before] if what == "fsync"}

    renames = [
        (number, target)
        for number, (what, _, target) in enumerate(events)
        if what == "rename"
    ]
    saves = [n for n, target in renames if "/checkpoints/step_" in target]
    assert len(saves) == 4
    logs = ("metrics.jsonl", "metrics.csv", "tensorboard/train", "events.out")
    # Each of the saves counts lines that were logged since the one before.
    for after, before in zip([0, *saves], saves, strict=False):
        there = flushed(after=after, before=before)
        for name in logs:
            assert any(f"{home}/" in one and name in one for one in there)
    done = max(n for n, target in renames if target.endswith("/run.json"))
    there = flushed(after=saves[-2], before=done)
    for name in ("metrics.jsonl", "metrics.csv"):
        assert str(home / name) in there
    # The files of an export have their final names only when they are whole.
    for folder in ("saved_model", "saved_model/variables"):
        for path in (home / "export" / folder).iterdir():
            if path.is_file():
                name = path.name
                assert any(".new" in p and name in p for p in there)
    assert any("model.keras" in path for path in there)
    assert str(home / "export") in there
