"""What `Progress` writes of a real run, to a terminal and to a file."""

import io
import re

from rich.console import Console

from tests.helpers import linear, make_trainer
from trainer import Callback
from trainer_plugins import Checkpoint, Progress


class Enough(Callback):
    """Stops a run as an early stop does."""

    def on_log(self, step, split, logs):
        self.run.stop("loss [does] not improve")


def shown(*callbacks, terminal=False, eval_every=20, **options):
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=120, color_system=None
    )
    make_trainer(linear).train_and_evaluate(
        20,
        callbacks=[Progress(console=console, **options), *callbacks],
        steps_per_loop=5,
        log_every=10,
        eval_every=eval_every,
    )
    return out.getvalue()


def test_a_file_gets_a_line_for_each_log():
    about, first, second, evaluated, closing = shown().splitlines()
    assert about.startswith("strategy default on cpu:0")
    number = r"[\d.e+-]+"
    for line, place in ((first, "1-10/20"), (second, "11-20/20")):
        assert re.fullmatch(
            rf"steps {place}  loss {number}  [\d,]+ examples/s  0:0\d left",
            line,
        )
    assert re.fullmatch(rf"eval  step 20/20  loss {number}", evaluated)
    time = r"[\d.]+ m?s"
    assert re.fullmatch(
        rf"trained {time} of {time} \((start-up|compile) {time}, .*\)"
        r"  peak memory: host \d\.\d\d GB",
        closing,
    )


def test_a_terminal_gets_a_bar_with_lines_above():
    text = shown(terminal=True)
    assert re.search(r"eval  step 20/20  loss [\d.e-]+\n", text)
    # The evaluation, which is above, is not in it.
    last = text.split("\x1b[2K")[-1]
    assert re.match(
        r"20/20  0:00 left  epoch 2: loss [\d.e-]+  [\d,]+ examples/s  ━", last
    )
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


def test_evaluations_do_not_flood_a_terminal():
    """The first one has a line, and the last; 0 seconds show all."""
    options = {"eval_every": 5, "terminal": True}
    text = shown(**options)
    assert re.findall(r"eval  step (\d+)/20", text) == ["5", "20"]
    text = shown(evaluation_seconds=0, **options)
    assert len(re.findall(r"eval  step (\d+)/20", text)) == 4


def test_a_run_says_where_it_resumes_and_that_it_is_finished(tmp_path):
    out = io.StringIO()

    def train(steps):
        make_trainer(linear).train(
            steps,
            model_dir=str(tmp_path / "run"),
            callbacks=[Progress(console=Console(file=out)), Checkpoint()],
        )
        text = out.getvalue()
        out.truncate(out.seek(0))
        return "".join(text.split("\n"))

    assert "resumed" not in train(5)
    text = train(7)
    assert f"resumed from step 5 of run {tmp_path / 'run'}" in text
    assert "finished" not in text
    assert "already finished at step 7; for more: train(14)" in train(7)


def test_an_early_stop_says_so():
    text = shown(Enough())
    assert "stopped  step 10/20  loss [does] not improve\n" in text
