"""`profile`: which steps are traced, and that its own reader reads it."""

import os
import subprocess
import sys

import pytest

from tests.helpers import linear, make_trainer
from tests.sets import long
from tests.trainer.cli.tiny import HERE, TINY
from trainer import Callback, UserError
from trainer.loop import profiler


def traces(folder):
    return sorted(folder.rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "10:20"}, "needs a run directory"),
        long({"profile": "20:10"}, "two numbers of steps"),
        long({"profile": "10:41", "model_dir": "run"}, "at most 40"),
        long({"profile_workers": "0"}, "set profile"),
        long(
            {"profile": "1:2", "profile_workers": "1", "model_dir": "run"},
            "there is no worker '1'.*Valid: 0, 'all'",
        ),
    ],
)
def test_what_is_refused(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        make_trainer(linear).train(40, verbose=0, **options)


class Touches(Callback):
    """Asks for a profile once 10 steps are done."""

    def on_save(self, step, logs):
        if step == 10:
            with open(f"{self.trainer.model_dir}/PROFILE", "w") as file:
                file.write("5")


@pytest.mark.long
def test_steps_and_a_touch_file(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler, "_EVERY", 0.0)
    started = []
    start = profiler.Profiler._start
    monkeypatch.setattr(
        profiler.Profiler,
        "_start",
        lambda self, *steps: (started.append(steps), start(self, *steps)),
    )
    trainer = make_trainer(linear)
    trainer.train(
        40,
        model_dir=tmp_path,
        steps_per_loop=5,
        callbacks=[Touches()],
        profile="22:24",
        verbose=0,
    )
    assert started == [(10, 15), (22, 24)]
    assert trainer.step == 40
    assert not (tmp_path / "PROFILE").exists()
    # Where TensorBoard's plugin looks for them.
    (first, *_) = traces(tmp_path)
    assert first.parts[-5:-2] == ("train", "plugins", "profile")
    # The trace changes nothing.
    other = make_trainer(linear)
    other.train(40, steps_per_loop=5, verbose=0)
    for own, its in zip(
        trainer.model.get_weights(), other.model.get_weights(), strict=True
    ):
        assert (own == its).all()


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
@pytest.mark.parametrize(
    ("workers", "places"),
    [("1", {"worker_1"}), ("all", {"train", "worker_1"})],
)
def test_the_stated_workers(tmp_path, workers, places):
    (tmp_path / "tiny.gin").write_text(TINY)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainer.launch", "--num_workers=2", "--"),
            *("--gin_file=tiny.gin", "--model_dir=run", "--profile=2:4"),
            *(
                "--strategy=multi_worker_mirrored",
                f"--profile_workers={workers}",
            ),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = {path.parents[3].name for path in traces(tmp_path)}
    assert found == places
