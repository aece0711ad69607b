"""`Program`: what a replica runs, as a function of its batches."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A function that one replica runs, and what it is called with.

    Attributes:
        name: such as `"training step"`.
        function: of `inputs`; to be traced, not called.
        inputs: structures of `tf.TensorSpec`, one for each argument.
        replicas: how many run it together.
        model: whose layers it calls.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    replicas: int
    model: keras.Model


class Programs(Protocol):
    """The programs of a run."""

    def training(self) -> Program:
        """The training step."""

    def evaluation(self) -> Program:
        """The evaluation step."""

    def serving(self) -> Program:
        """The model as it is exported, on a replica's share of a batch."""
