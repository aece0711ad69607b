import csv
import math

from tests.plugins.loggers import training
from trainer.plugin_api import Media
from trainer_plugins import CSV


def make(*arguments, **options):
    logger = training.make(CSV, *arguments, **options)
    logger.setup()
    logger.on_train_begin()
    return logger


def read(model_dir):
    with (model_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_new_name_becomes_a_column(tmp_path):
    logger = make(tmp_path)
    logger.on_log(1, "train", {"loss": 0.5})
    logger.on_log(1, "eval", {"loss": 0.25, "accuracy": math.nan})
    logger.on_values(2, "train", {"a": 1.0, "text": Media("text", "x,y")})
    logger.close()
    assert (tmp_path / "metrics.csv").read_text() == (
        "step,split,loss,accuracy,a\n"
        "1,train,0.5,,\n"
        "1,eval,0.25,nan,\n"
        "2,train,,,1.0\n"
    )


def test_resuming_drops_later_steps_and_the_torn_row(tmp_path):
    first = make(tmp_path)
    for step in (10, 20, 30):
        first.on_log(step, "train", {"loss": 1.0 / step})
        first.on_log(step, "eval", {"loss": 2.0 / step})
    path = tmp_path / "metrics.csv"
    with path.open("ab") as file:
        file.write(b"40,tra")
    resumed = make(tmp_path, step=20, taken_back=["eval"])
    expected = [("10", "train"), ("10", "eval"), ("20", "train")]
    assert [(r["step"], r["split"]) for r in read(tmp_path)] == expected
    resumed.on_log(30, "train", {"loss": 3.0, "new": 4.0})
    assert read(tmp_path)[-1] == {
        "step": "30",
        "split": "train",
        "loss": "3.0",
        "new": "4.0",
    }
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_logger_that_is_used_again_writes_its_header_again(tmp_path):
    logger = make(tmp_path / "first")
    for name in ("first", "second"):
        logger.run.model_dir = str(tmp_path / name)
        logger.setup()
        logger.on_train_begin()
        logger.on_log(1, "train", {"loss": 0.5})
        logger.close()
    assert read(tmp_path / "second") == read(tmp_path / "first") != []


def test_rows_without_their_header_are_kept_apart(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("10,train,0.5\n")
    make(tmp_path, step=10).on_log(20, "train", {"loss": 1.0})
    assert path.read_text() == "step,split,loss\n20,train,1.0\n"
    (kept,) = tmp_path.glob("metrics.csv.damaged-*")
    assert kept.read_text() == "10,train,0.5\n"
