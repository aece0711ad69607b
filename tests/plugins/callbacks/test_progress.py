import io
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.helpers import linear, make_trainer
from trainer_plugins import Progress
from trainer_plugins.callbacks import progress

ACCOUNTS = {
    "start_up": 10.0,
    "step": 60.0,
    "data_wait": 0.1,
    "lost": 30.0,
    "total": 100.1,
    "goodput": 0.6,
}
ABOUT = "strategy default on cpu:0"
CLOSING = "goodput 60% of 1:40  (step 60%, lost 30%, start up 10%)"
SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"


def make(*, terminal, is_chief=True, steps=2000):
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=120, color_system=None
    )
    callback = Progress(console=console)
    callback.run = SimpleNamespace(
        step=0,
        plugin=SimpleNamespace(is_chief=is_chief),
        steps=steps,
        stop_reason=None,
        describe=lambda: ABOUT,
        accounts=SimpleNamespace(summary=lambda: dict(ACCOUNTS)),
    )
    return callback, out


def run_steps(callback, steps, clock=None, seconds=0.0):
    callback.on_train_batch_begin(0)
    if clock is not None:
        clock.now += seconds
    callback.run.step += steps
    callback.on_train_batch_end(0)


class Clock:
    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


LOGS = {
    "loss": 0.1234,
    "accuracy": 0.97123,
    "learning_rate": 0.001,
    "examples_per_second": 5321.4,
}


def test_plain_line_and_remaining_time(clock):
    callback, out = make(terminal=False)
    callback.on_train_begin()
    run_steps(callback, 100, clock, seconds=60.0)  # Compiles.
    run_steps(callback, 100, clock, seconds=2.0)
    clock.now += 1000  # An evaluation.
    callback.on_log(200, "train", LOGS)
    assert out.getvalue() == (
        f"{ABOUT}\n"
        "step 200/2000  loss 0.1234  accuracy 0.9712  5321 examples/s  "
        "eta 0:36\n"
    )


def test_early_stop_says_why():
    callback, out = make(terminal=False)
    callback.run.step = 12
    callback.run.stop_reason = "val_loss [does] not improve"
    callback.on_train_end()
    shown, *_ = out.getvalue().partition("  peak memory")
    assert shown == (
        "stopped  step 12/2000  val_loss [does] not improve\n" + CLOSING
    )


def test_terminal_shows_a_bar_with_eval_lines_above():
    callback, out = make(terminal=True)
    callback.on_train_begin()
    run_steps(callback, 100)
    time.sleep(0.01)
    run_steps(callback, 100)
    callback.on_log(200, "train", LOGS)
    callback.on_log(200, "eval", {"loss": 0.25})
    callback.on_train_end()
    text = out.getvalue()
    assert "eval  step 200/2000  loss 0.2500\n" in text
    last = text.rsplit("eval  step", 1)[1]
    assert re.search(r"200/2000.*loss 0.1234.*5321 examples/s.*eta", last)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_only_the_chief_prints(terminal):
    callback, out = make(terminal=terminal, is_chief=False)
    callback.on_train_begin()
    run_steps(callback, 100)
    callback.on_log(100, "train", LOGS)
    callback.on_log(100, "eval", LOGS)
    callback.on_train_end()
    callback.close()
    assert out.getvalue() == ""


def test_with_the_trainer():
    out = io.StringIO()
    trainer = make_trainer(linear)
    trainer.train_and_evaluate(
        20,
        callbacks=[Progress(console=Console(file=out))],
        steps_per_loop=5,
        log_every=10,
        eval_every=20,
    )
    about, first, second, evaluated, closing = out.getvalue().splitlines()
    number = r"[\d.e+-]+"
    for line, place in ((first, "10/20"), (second, "20/20")):
        assert re.fullmatch(
            rf"step {place}  loss {number}  \d+ examples/s  eta 0:0\d", line
        )
    assert re.fullmatch(rf"eval  step 20/20  loss {number}", evaluated)
    assert re.fullmatch(
        r"goodput \d+% of [\d:]+  \(.*%\)  peak memory: host \d\.\d\d GB",
        closing,
    )
