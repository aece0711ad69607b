"""The configurations of a sweep are read before any run begins."""

import pytest

from tests.trainer.cli.tiny import TINY
from trainer.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gin").write_text(TINY)


def read(*sweeps):
    flags = [f"--sweep={text}" for text in sweeps]
    return main(["--gin_file=tiny.gin", *flags, "--mode=print_config"])


def test_each_point_is_printed(capsys):
    assert read("SGD.learning_rate=[0.1, 0.2]", "sums.size=[32]") == 0
    said = capsys.readouterr().out
    for rate in ("0.1", "0.2"):
        title = f"# learning_rate={rate},size=32\n"
        one = said.split(title)[1].split("# learning_rate")[0]
        assert f"SGD.learning_rate = {rate}\n" in one
        assert "sums.size = 32\n" in one


@pytest.mark.parametrize(
    ("sweep", "part"),
    [
        ("SGD.learning_rate=[0.1, 'fast']", "SGD.learning_rate = 'fast'"),
        ("Trainer.optimizer=[@SGD, @Adm]", "Did you mean 'Adam'?"),
        ("SGD.momentm=[0.9]", "'momentum'"),
        ("Trainer.batch_size=[8, 0]", "Trainer.batch_size = 0 (--sweep)"),
    ],
)
def test_the_last_point_is_checked_as_the_first(capsys, sweep, part):
    assert read(sweep) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert part in said
    assert "--sweep" in said
