"""Data addressed by step: global batches, cut into batches for replicas."""

from trainer.data.batches import Batches, Cut, Resume
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.feeding import Padded, exact, feeder, padded
from trainer.data.indexed_batches import IndexedBatches

__all__ = [
    "ArrayExamples",
    "Batches",
    "Cut",
    "DatasetBatches",
    "Examples",
    "IndexedBatches",
    "Padded",
    "Resume",
    "exact",
    "feeder",
    "padded",
]
