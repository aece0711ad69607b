"""A loop in PyTorch, eager or compiled.

All arrays are tensors, and a batch is gathered with one index per column: a
`DataLoader` would fetch row by row. Adam is the fused one, which updates all
weights in one kernel.
"""

from collections.abc import Iterator

import torch

from benchmarks import models
from benchmarks.contenders import torch_models
from benchmarks.orders import Orders, Task


def batches(
    columns: tuple[torch.Tensor, ...], size: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless batches, in a new order in each epoch."""
    count = len(columns[0])
    while True:
        for order in torch.randperm(count).split(size):
            if len(order) == size:
                yield tuple(column[order] for column in columns)


def run(task: Task, orders: Orders) -> None:
    """Trains in turns."""
    spec = models.find(task.model)
    model = torch_models.make(task.model).train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    if task.form == "compiled":
        model.compile()
    loss_of = torch.nn.CrossEntropyLoss()
    feed = batches(
        torch_models.columns(spec.arrays(task.examples)), models.BATCH
    )
    while True:
        orders.wait()
        for _ in range(task.steps // task.unit):
            sums = torch.zeros(2)
            for _ in range(task.unit):
                x, y = next(feed)
                optimizer.zero_grad()
                logits = model(x)
                loss = loss_of(logits, y)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    right = (logits.argmax(1) == y).float().mean()
                    sums += torch.stack([loss, right])
            (sums / task.unit).tolist()
