"""Lightning's `Trainer.fit`, with what it does unasked switched off.

No logger, no checkpoints, no progress bar and no checks of the model before the
first step; input and optimizer are those of the contender PyTorch, and loss and
accuracy are read every 100 steps. One call of `fit` for all turns.
"""

from collections.abc import Iterator
from typing import Any

import lightning
import torch

from benchmarks import models
from benchmarks.contenders import pytorch, torch_models
from benchmarks.orders import Orders, Task


class Module(lightning.LightningModule):
    """A model, its loss and its optimizer."""

    def __init__(self, task: Task, orders: Orders) -> None:
        super().__init__()
        self.model = torch_models.make(task.model)
        self.loss_of = torch.nn.CrossEntropyLoss()
        self.sums = torch.zeros(2)
        self.task = task
        self.orders = orders
        self.done = 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, fused."""
        return torch.optim.Adam(self.parameters(), fused=True)

    def on_train_start(self) -> None:
        """Waits for the first turn."""
        self.orders.wait()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """The loss of a batch."""
        x, y = batch
        logits = self.model(x)
        loss: torch.Tensor = self.loss_of(logits, y)
        with torch.no_grad():
            right = (logits.argmax(1) == y).float().mean()
            self.sums += torch.stack([loss, right])
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        """Counts a step; at the end of a turn waits for the next."""
        self.done += 1
        if self.done % self.task.unit == 0:
            (self.sums / self.task.unit).tolist()
            self.sums.zero_()
        if self.done % self.task.steps == 0:
            self.orders.wait()


class Feed(torch.utils.data.IterableDataset):
    """Endless batches, gathered at once."""

    def __init__(self, columns: tuple[torch.Tensor, ...]) -> None:
        self._columns = columns

    def __iter__(self) -> Iterator[Any]:
        return pytorch.batches(self._columns, models.BATCH)


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    pytorch.prepare(task)
    spec = models.find(task.model)
    columns = torch_models.columns(spec.arrays(task.examples))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader = torch.utils.data.DataLoader(Feed(columns), batch_size=None)
    trainer.fit(Module(task, orders), loader)
