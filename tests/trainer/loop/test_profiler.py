"""`profile`: which steps are traced, and that its own reader reads it."""

import os
import subprocess
import sys

import pytest

from tests.helpers import assert_same, linear, make_trainer
from tests.sets import long
from tests.trainer.cli.tiny import HERE, TINY
from trainer import UserError


def traces(folder):
    return sorted(folder.rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "10:20"}, "needs a run directory"),
        long({"profile": "20:10"}, "two numbers of steps"),
        long({"profile": "10:41", "model_dir": "run"}, "at most 40"),
    ],
)
def test_what_is_refused(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        make_trainer(linear).train(40, verbose=0, **options)


@pytest.mark.long
def test_a_trace_changes_nothing(tmp_path):
    trainer = make_trainer(linear)
    trainer.train(
        40, model_dir=tmp_path, steps_per_loop=5, profile="22:24", verbose=0
    )
    # Where TensorBoard's plugin looks for them.
    (one,) = traces(tmp_path)
    assert one.parts[-5:-2] == ("train", "plugins", "profile")
    other = make_trainer(linear)
    other.train(40, steps_per_loop=5, verbose=0)
    assert_same(trainer.model.get_weights(), other.model.get_weights())


@pytest.mark.long
def test_its_own_reader_reads_it(tmp_path):
    reader = pytest.importorskip("xprof.convert.raw_to_tool_data")
    trainer = make_trainer(linear)
    trainer.train(30, model_dir=tmp_path, profile="10:20", verbose=0)
    files = [str(path) for path in traces(tmp_path)]
    assert len(files) == 1
    content, _ = reader.xspace_to_tool_data(files, "trace_viewer", {})
    text = content if isinstance(content, str) else content.decode()
    # A mark for each step.
    for step in range(10, 20):
        assert f'"step_num":"{step}"' in text.replace(" ", "")
    overview, _ = reader.xspace_to_tool_data(files, "overview_page", {})
    assert overview


@pytest.mark.long
def test_of_several_workers_the_chief_is_traced(tmp_path):
    (tmp_path / "tiny.gin").write_text(TINY)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch", "--num_workers=2", "--"),
            *("--gin_file=tiny.gin", "--model_dir=run", "--profile=2:4"),
            "--strategy=multi_worker_mirrored",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(traces(tmp_path)) == 1
