"""How long a run is: in steps, in epochs, and in time."""

import time

from tests.helpers import linear, lines, make_trainer, saved_steps
from trainer import Callback
from trainer_plugins import Checkpoint, JsonLines


def test_train_ends_after_so_many_epochs():
    trainer = make_trainer(linear)
    trainer.train("2 epochs", verbose=0)
    assert trainer.step == 16
    trainer.train("3 epochs", verbose=0)
    assert trainer.step == 24


class Slow(Callback):
    def __init__(self, stop_at):
        super().__init__()
        self.stop_at = stop_at

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.06)
        if self.run.step == self.stop_at:
            self.run.stop("enough")


def test_max_time_counts_all_attempts(tmp_path):
    def attempt(steps, seconds, stop_at=None):
        trainer = make_trainer(linear)
        trainer.train(
            steps,
            max_time=f"{seconds}s",
            model_dir=str(tmp_path),
            callbacks=[Slow(stop_at), Checkpoint(every=5)],
            steps_per_loop=1,
            verbose=0,
        )
        return trainer

    first = attempt(10, 1000)
    assert first.step == 10
    spent = first._accounts.training_seconds
    assert spent > 0.5
    # Another process: what the first attempt took is spent.
    second = attempt(1000, spent + 0.1)
    # Without the first attempt's time, there would be room for more steps.
    assert 10 <= second.step < 18
    assert "max_time" in second.stop_reason
    assert saved_steps(tmp_path)[-1] == second.step
    # The same again stays stopped; with more time, it goes on.
    again = attempt(1000, spent + 0.1)
    assert again.step == second.step
    third = attempt(1000, spent + 20, stop_at=second.step + 2)
    assert third.step == second.step + 2


def test_what_only_an_end_logs_is_marked_and_decides_nothing(tmp_path):
    class Decides(Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_log(self, step, split, logs):
            self.seen.append((step, split))

    def train(folder, *lengths):
        for steps in lengths:
            decides = Decides()
            make_trainer(linear).train_and_evaluate(
                steps,
                model_dir=str(folder),
                callbacks=[JsonLines(), Checkpoint(), decides],
                log_every=10,
                eval_every=10,
                verbose=0,
            )
        return decides.seen, lines(folder)

    seen, found = train(tmp_path / "short", 13)
    assert seen == [(10, "train"), (10, "eval")]
    assert [(one["step"], one.get("final", False)) for one in found] == [
        (10, False),
        (10, False),
        (13, True),
        (13, True),
    ]
    _, longer = train(tmp_path / "short", 20)
    _, whole = train(tmp_path / "whole", 20)
    assert longer == whole
    # One that is complete keeps them.
    assert train(tmp_path / "again", 13, 13)[1] == found
