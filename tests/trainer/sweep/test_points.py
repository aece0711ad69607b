"""What `--sweep` varies, and what it refuses."""

import os

import pytest

from trainer.cli import flags
from trainer.cli.main import main
from trainer.errors import UserError
from trainer.sweep.points import parse_points


def points(*sweeps, given=()):
    request = flags.parse(["--gin_file=a.gin", *given])
    return {p.name: p.flags for p in parse_points(sweeps, request.bindings)}


def test_a_grid_has_readable_names():
    found = points(
        "Adam.learning_rate=[1e-3, 1e-2]", "big/my_model.units = [8, [16, 32]]"
    )
    assert found == {
        f"learning_rate={rate},units={name}": [
            f"--gin.Adam.learning_rate={rate}",
            f"--gin.big/my_model.units={units}",
        ]
        for rate in ("0.001", "0.01")
        for units, name in (("8", "8"), ("[16, 32]", "16_32"))
    }


def test_names_stay_when_values_are_added():
    few = points("A.b=['x y', -1]")
    more = points("A.b=['x y', -1, 'x_y']")
    assert list(few) == ["b=x_y", "b=-1"]
    assert list(more) == ["b=x_y", "b=-1", "b=x_y-2"]


def test_all_literals_of_gin_are_values():
    found = points(
        "Trainer.optimizer=[@Adam, @slow/SGD]", "a.b=[%width, @f(), None]"
    )
    assert list(found.values())[:3] == [
        ["--gin.Trainer.optimizer=@Adam", f"--gin.a.b={value}"]
        for value in ("%width", "@f()", "None")
    ]


def test_names_that_are_equal_or_long_stay_apart():
    found = points("A.units=[1]", "B.units=[2]")
    assert list(found) == ["A.units=1,B.units=2"]
    found = points("a.A.units=[1]", "b.A.units=[2]")
    assert list(found) == ["a.A.units=1,b.A.units=2"]
    long = points(f"A.b=['{'é' * 150}', '{'é' * 151}']")
    assert len(long) == 2
    assert all(len(os.fsencode(name)) <= 200 for name in long)


@pytest.mark.parametrize(
    ("sweeps", "given", "part"),
    [
        (["Adam.learning_rate"], [], "as in --sweep='Adam.learning_rate=["),
        (["Adam.learning_rate=0.1"], [], "must be in a list"),
        (["Adam.learning_rate=[]"], [], "not empty"),
        (["Adam.learning_rate=[1e-3, 0.001]"], [], "0.001 is there twice"),
        (["Adam.learning_rate=[0.1"], [], "--sweep=Adam.learning_rate=[0.1"),
        (["Adam.learning_rate=[fast]"], [], "A string needs quotes"),
        (["A.b=[1]\nA.c=[2]"], [], "not one binding"),
        (["include 'x=[]'"], [], "not one binding"),
        (["A.b=[1]", "x.A.b=[2]"], [], "x.A.b is varied twice"),
        (["batch_size=[1, 2]"], [], "Trainer.batch_size"),
        (["Trainer.seed=[1, 2]"], ["--seed=3"], "--seed=3 and --sweep"),
        (["A.b=[1, 2]"], ["--gin.x.A.b=3"], "--gin.x.A.b=3 and --sweep"),
        (["A.b=[1, 2]"], ["--gin_param=A.b=3"], "'A.b=3' and --sweep"),
        (["Adam.learning_rate=[1]"], ["--learning_rate=3"], "replaces"),
    ],
)
def test_mistakes_are_a_sentence(sweeps, given, part):
    with pytest.raises(UserError) as error:
        points(*sweeps, given=given)
    assert part in str(error.value)
    assert "\n" not in str(error.value).replace(sweeps[0], "")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (["--mode=eval", "--model_dir=new"], "--mode=eval does not"),
        (["--task_index=0"], "--task_index"),
        (["--model_dir=gs://a/b"], "local"),
        (["--model_dir=run"], "holds a run"),
    ],
)
def test_what_does_not_go_with_a_sweep(
    tmp_path, monkeypatch, capsys, given, part
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["--gin_file=a.gin", "--sweep=A.b=[1]", *given]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert part in said
    assert os.listdir(tmp_path) == ["run"]
