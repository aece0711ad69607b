"""Runs whose every file is in an object store, killed and restarted."""

import json
import shutil
import signal
import subprocess
import sys
from urllib.parse import quote, unquote

import numpy as np
import pytest
import tensorflow as tf

from tests import object_store
from tests.faults import reading
from tests.faults.runs import GIN_FILE, ROOT, Runs

pytestmark = pytest.mark.long

RUN = "objects://bucket/run"
ALL = (
    "--gin.run.callbacks=[@Faults(), @callbacks.ReduceLROnPlateau(), "
    "@JsonLines(), @TensorBoard(), @Export(), @Preemption(), @Checkpoint()]",
    "--gin.Checkpoint.keep_last=2",
)

WRITE = """
import sys
import numpy as np
from tests.experiments.records import write_image_records

for split in ("train", "eval"):
    arrays = np.load(f"{sys.argv[1]}/{split}.npz")
    images = arrays["x"][:, :4].reshape(-1, 2, 2, 1) * 50 + 100
    write_image_records(
        f"{sys.argv[1]}/records",
        split,
        images.astype("uint8"),
        arrays["y"],
        files=2,
    )
"""
RECORDS = """
import trainer_experiments.image_records
include 'objects://bucket/net.gin'
Trainer.data = @image_records
image_records.image_size = 2
image_records.num_classes = 3
Trainer.batch_size = 12
run.train_steps = 8
run.callbacks = [@JsonLines(), @Checkpoint()]
"""
NET = """
import tests.faults.user_code
Trainer.model = @image_net
Trainer.loss = 'categorical_crossentropy'
Trainer.optimizer = @SGD
"""


class StoreRuns(Runs):
    """Runs with `objects://` paths; the store is in the test's folder."""

    def __init__(self, folder, plugin, *, markers):
        super().__init__(folder, gin_file="objects://bucket/faults.gin")
        self.bucket = folder / "store" / "bucket"
        self.bucket.mkdir(parents=True)
        shutil.copy(GIN_FILE, self.bucket)
        self.model_dir = RUN
        self.environ = {
            "OBJECTS_PLUGIN": str(plugin),
            "OBJECTS_ROOT": str(folder / "store"),
            "OBJECTS_MARKERS": markers,
        }

    def _start(self, command, environ, folder, log):
        command = ["tests.object_store", *command]
        return super()._start(command, environ, folder, log)

    def put(self, path, name):
        """Copies a local file to the store."""
        shutil.copy(path, self.bucket / quote(name, safe=""))

    def names(self):
        """The names of the objects of the run, without its own."""
        found = (unquote(path.name) for path in self.bucket.iterdir())
        return sorted(
            name.removeprefix("run/")
            for name in found
            if name.startswith("run/") and not name.endswith("/")
        )

    def local(self):
        """A local copy of the run directory."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        for name in self.names():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            quoted = quote(f"run/{name}", safe="")
            shutil.copy(self.bucket / quoted, copy / name)
        return copy


@pytest.fixture
def stored(request, tmp_path, objects_plugin):
    markers = getattr(request, "param", "1")
    made = StoreRuns(tmp_path, objects_plugin, markers=markers)
    yield made
    made.end()


def scalars(model_dir, name):
    """What TensorBoard shows of a scalar, by step."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    read = EventAccumulator(
        f"{model_dir}/train",
        size_guidance={"tensors": 0},
        purge_orphaned_data=True,
    ).Reload()
    return {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in read.Tensors(name)
    }


def tiny_data(split):
    """As in the user code, which is not for this process to import."""
    rng = np.random.default_rng(len(split))
    labels = np.arange(96) % 3
    x = rng.normal(size=(96, 6)).astype("float32")
    x[np.arange(96), labels] += 2.0
    return x, labels


def served(model_dir):
    """What the exported model gives."""
    # Its variables live as long as it does.
    model = tf.saved_model.load(str(model_dir / "export" / "saved_model"))
    return model.serve(np.ones((2, 6), "float32"))


def assert_as_undisturbed(stored, whole):
    local = stored.local()
    reading.assert_equal(local, whole)
    reading.assert_tidy(local)
    assert scalars(local, "loss") == scalars(whole, "loss")
    assert reading.record(local)["exit_reason"] == "done"
    lasting = {name for name in stored.names() if ".tmp" not in name}
    assert "run.lock" not in lasting
    np.testing.assert_array_equal(served(local), served(whole))
    assert "export/model.keras" in lasting


@pytest.mark.parametrize(
    "stored", ["1", "0"], indirect=True, ids=["markers", "no markers"]
)
def test_kills_at_each_phase_leave_no_trace(stored, undisturbed):
    whole = undisturbed(*ALL)
    for point, step in (("begin", 0), ("evaluation", 8), ("save", 12)):
        stored.plan(f"single {point} {step} SIGKILL")
        stored.train(*ALL).must_end(-signal.SIGKILL)
    stored.plan("single step 14 SIGTERM")
    stored.train(*ALL).must_end(75)
    stored.plan()
    stored.train(*ALL).must_end(0)
    assert_as_undisturbed(stored, whole)
    assert reading.record(stored.local())["restarts"] == 4


@pytest.mark.parametrize(
    "stored", ["1", "0"], indirect=True, ids=["markers", "no markers"]
)
def test_kills_in_place_of_any_change_leave_no_trace(stored, undisturbed):
    """Each attempt gets a little further: some end in the midst of a save."""
    whole = undisturbed(*ALL)
    torn = 0
    for change in (4, 14, 25, 32, 37, 41, 46, 51, 58, 66, 73, 81):
        process = stored.train(
            *ALL, environ={"OBJECTS_DIE_AT": str(change)}
        ).must_end(-signal.SIGKILL, 0)
        steps = reading.checkpoints(stored.local())
        torn += len(steps) > len(reading.whole_steps(stored.local()))
        if process.end() == 0:
            break
    # Otherwise no kill was in the midst of a save.
    assert torn
    stored.train(*ALL).must_end(0)
    assert_as_undisturbed(stored, whole)


def test_two_runs_at_once_are_refused(stored, undisturbed):
    stored.plan("single step 14 hold")
    first = stored.train(*ALL)
    first.wait_for(stored.is_held, "the step")
    second = stored.train(*ALL, log="second").must_end(2)
    second.sentence("model_dir objects://bucket/run is in use", str(first.pid))
    stored.release()
    first.must_end(0)
    assert_as_undisturbed(stored, undisturbed(*ALL))


def test_data_in_the_store(stored, undisturbed):
    folder = stored.folder
    for split in ("train", "eval"):
        x, y = tiny_data(split)
        np.savez(folder / f"{split}.npz", x=x, y=y)
        stored.put(folder / f"{split}.npz", f"data/{split}.npz")
    command = [sys.executable, "-c", WRITE, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    for path in (folder / "records").iterdir():
        stored.put(path, f"records/{path.name}")
    stored.train(
        "--data_dir=objects://bucket/data",
        "--gin.Trainer.data=@stored_data",
        *ALL,
    ).must_end(0)
    reading.assert_equal(stored.local(), undisturbed(*ALL))
    for name, text in {"records.gin": RECORDS, "net.gin": NET}.items():
        (folder / name).write_text(text)
        stored.put(folder / name, name)
    stored.gin_file = "objects://bucket/records.gin"
    stored.model_dir = "objects://bucket/records_run"
    data_dir = "--data_dir=objects://bucket/records"
    stored.train(data_dir, log="of_records").must_end(0)


def test_tensorboard_reads_the_store(stored, monkeypatch):
    for name, value in stored.environ.items():
        monkeypatch.setenv(name, value)
    object_store.register()
    stored.plan("single step 14 SIGKILL")
    stored.train(*ALL).must_end(-signal.SIGKILL)
    # What was logged is there, though nobody has closed the file.
    assert list(scalars(RUN, "loss")) == [4, 8, 12]
    stored.plan()
    stored.train(*ALL).must_end(0)
    assert list(scalars(RUN, "loss")) == [4, 8, 12, 16, 20, 24]


def test_modes_that_read_a_run(stored, undisturbed):
    evaluator = stored.train(
        "--mode=continuous_eval",
        "--gin.run.eval_poll_seconds=0.2",
        *ALL,
        environ={"FAULTS_TASK": "evaluator"},
        log="evaluator",
    )
    stored.train(*ALL).must_end(0)
    evaluator.must_end(0)
    local = stored.local()
    (last,) = [
        line
        for line in reading.metrics(local, "metrics_evaluator.jsonl")
        if line["step"] == 24
    ]
    (expected,) = [
        line
        for line in reading.metrics(undisturbed(*ALL))
        if (line["step"], line["split"]) == (24, "eval")
    ]
    assert last == expected
    best = json.loads((local / "best" / "best.json").read_text())
    assert reading.is_whole(local / "best" / f"step_{best['step']:08d}")
    assert any(n.startswith("evaluator/") for n in stored.names())
    said = stored.train("--mode=eval", *ALL, log="eval").must_end(0)
    assert f"loss: {expected['loss']:.6g}" in said.log
    before = (local / "export" / "saved_model" / "saved_model.pb").read_bytes()
    stored.train("--mode=export", *ALL, log="export").must_end(0)
    assert before
    assert served(stored.local()).shape == (2, 3)
    stored.model_dir = "objects://bucket/second"
    stored.train(f"--init_from={RUN}", *ALL, log="init").must_end(0)
    stored.model_dir = "objects://bucket/third"
    nothing = stored.train("--init_from=objects://bucket/x", *ALL, log="no")
    nothing.must_end(2).sentence("objects://bucket/x")


def test_a_bucket_that_is_not_there_is_named(stored):
    stored.model_dir = "objects://elsewhere/run"
    process = stored.train(*ALL).must_end(2)
    assert "objects://elsewhere/run cannot be" in process.log
    stored.gin_file = "objects://bucket/nothing.gin"
    stored.train().must_end(2).sentence("objects://bucket/nothing.gin")
