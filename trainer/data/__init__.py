"""Data addressed by step: global batches, cut into pieces for replicas."""

from trainer.data.adapters import as_batches
from trainer.data.batches import Batches, Resume, feeder
from trainer.data.dataset_batches import DatasetBatches
from trainer.data.examples import ArrayExamples, Examples
from trainer.data.indexed_batches import IndexedBatches
from trainer.data.static_shapes import Padded, exact, padded

__all__ = [
    "ArrayExamples",
    "Batches",
    "DatasetBatches",
    "Examples",
    "IndexedBatches",
    "Padded",
    "Resume",
    "as_batches",
    "exact",
    "feeder",
    "padded",
]
