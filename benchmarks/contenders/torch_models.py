"""The models of `benchmarks.models` in PyTorch.

The same layers, with channels first, as PyTorch has them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import models

# What Keras' layers have by default; PyTorch's momentum is one minus Keras'.
_NORM = {"eps": 1e-3, "momentum": 0.01}


class Block(nn.Module):
    """A pre-norm block of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(models.WIDTH) for _ in range(2))
        self.attention = nn.MultiheadAttention(
            models.WIDTH, models.HEADS, batch_first=True
        )
        self.dense = nn.Sequential(
            nn.Linear(models.WIDTH, 4 * models.WIDTH),
            nn.ReLU(),
            nn.Linear(4 * models.WIDTH, models.WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies it to `[batch, tokens, width]`."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dense(self.norms[1](x))


class Transformer(nn.Module):
    """Blocks of attention over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(models.VOCABULARY, models.WIDTH)
        self.mix = nn.Linear(models.WIDTH, models.WIDTH, bias=False)
        self.positions = nn.Parameter(torch.zeros(models.TOKENS, models.WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(models.BLOCKS)))
        self.norm = nn.LayerNorm(models.WIDTH)
        self.top = nn.Linear(models.WIDTH, models.CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens to logits."""
        x = self.mix(self.embedding(tokens)) + self.positions
        return self.top(self.norm(self.blocks(x)).mean(dim=1))


def _conv(inputs: int, filters: int, size: int, strides: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, filters, size, strides, size // 2, bias=False),
        nn.BatchNorm2d(filters, **_NORM),
    )


class Residual(nn.Module):
    """A block of ResNet-20."""

    def __init__(self, inputs: int, filters: int, strides: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(inputs, filters, 3, strides),
            nn.ReLU(),
            _conv(filters, filters, 3, 1),
        )
        self.shortcut = (
            _conv(inputs, filters, 1, strides) if strides > 1 else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies it to `[batch, channels, height, width]`."""
        return torch.relu(self.shortcut(x) + self.body(x))


class Mean(nn.Module):
    """The mean over some dimensions."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Leaves these dimensions out."""
        return x.mean(dim=self.dimensions)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, models.CLASSES)
    )


def _conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(13 * 13 * 32, 64),
        nn.ReLU(),
        nn.Linear(64, models.CLASSES),
    )


def _resnet20() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 16, 3, 1), nn.ReLU()]
    inputs = 16
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            layers.append(Residual(inputs, filters, strides))
            inputs = filters
    return nn.Sequential(*layers, Mean(2, 3), nn.Linear(64, models.CLASSES))


def _embedding() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(models.ROWS, models.WIDTH),
        Mean(1),
        nn.Linear(models.WIDTH, models.CLASSES),
    )


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "mlp": _mlp,
    "conv_net": _conv_net,
    "transformer": Transformer,
    "resnet20": _resnet20,
    "embedding": _embedding,
}


def make(name: str) -> nn.Module:
    """The model of a name.

    Raises:
        KeyError: it is not there in PyTorch.
    """
    return _MAKERS[name]()


def columns(arrays: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrays as tensors, images with their channels first."""
    x, y = (torch.from_numpy(one) for one in arrays)
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    # Embeddings and losses take only these integers.
    return (x if x.is_floating_point() else x.long()), y.long()
