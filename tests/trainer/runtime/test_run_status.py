"""When an evaluator believes that the run it follows has ended."""

import json

from trainer.runtime.run_status import RunIsOver


def write(folder, **record):
    (folder / "run.json").write_text(json.dumps(record))


def test_a_run_that_ends_meanwhile_is_over(tmp_path):
    is_over = RunIsOver(str(tmp_path / "run"))
    assert not is_over()
    (tmp_path / "run").mkdir()
    for reason in ("running", "start_again", "error", "user_error"):
        write(tmp_path / "run", exit_reason=reason)
        assert not is_over()
    write(tmp_path / "run", exit_reason="done", end="now")
    assert is_over()


def test_an_earlier_end_is_believed_after_a_while(tmp_path):
    write(tmp_path, exit_reason="done", end="yesterday")
    assert not RunIsOver(str(tmp_path))()
    assert RunIsOver(str(tmp_path), start_seconds=0)()


def test_a_run_that_goes_on_is_not_over_until_it_ends_again(tmp_path):
    write(tmp_path, exit_reason="done", end="yesterday")
    is_over = RunIsOver(str(tmp_path))
    write(tmp_path, exit_reason="running", end=None)
    assert not is_over()
    write(tmp_path, exit_reason="done", end="now")
    assert is_over()


def test_a_damaged_record_says_nothing(tmp_path):
    is_over = RunIsOver(str(tmp_path), start_seconds=0)
    for text in ("", '{"exit_reason": "do', '["done"]'):
        (tmp_path / "run.json").write_text(text)
        assert not is_over()
