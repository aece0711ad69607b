"""Annotations of parameters: types with their bounds.

They are ordinary annotations with the constraints of `annotated_types`.
`trainer.values.words` puts them into words, and `trainer.values.configurable`
checks arguments against them. Every number must be finite, whatever its
bounds.
"""

import os
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt, MinLen
from typing_extensions import Doc

# What a whole number, and a float32, can hold; and how many seconds Python can
# wait, in round numbers. Messages mention these only where one is exceeded.
MAX_INT, _MAX_FLOAT, _MAX_SECONDS = 2**63 - 1, 1e38, 1e9
LARGEST = (MAX_INT, _MAX_FLOAT, _MAX_SECONDS)

Natural: TypeAlias = Annotated[int, Ge(0), Le(MAX_INT)]
Positive: TypeAlias = Annotated[int, Ge(1), Le(MAX_INT)]
# NumPy's seeds have 32 bits.
Seed: TypeAlias = Annotated[int, Ge(0), Lt(2**32)]
Seconds: TypeAlias = Annotated[float, Gt(0), Le(_MAX_SECONDS)]
Finite: TypeAlias = Annotated[float, Ge(-_MAX_FLOAT), Le(_MAX_FLOAT)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Le(_MAX_FLOAT)]
Text: TypeAlias = Annotated[str, MinLen(1)]
Path: TypeAlias = Annotated[Text | os.PathLike[str], Doc("a path")]
Names: TypeAlias = Annotated[
    Text | Annotated[Sequence[Text], MinLen(1)],
    Doc("names, in a list or separated by commas"),
]
Job: TypeAlias = Literal["chief", "worker", "ps", "evaluator"]
Precision: TypeAlias = Literal["float32", "mixed_bfloat16", "mixed_float16"]
JitCompile: TypeAlias = bool | Literal["auto", "graph", "xla", "xla_stack"]
Split: TypeAlias = Literal["train", "eval"]
Direction: TypeAlias = Literal["min", "max", "auto"]
Verbosity: TypeAlias = Literal["auto", 0, 1, 2]
