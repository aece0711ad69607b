"""The compiled forms of a step, and what each of them needs."""

import enum


class Form(enum.StrEnum):
    """How the steps of a run are compiled.

    All forms compute the same step. They round differently, as compilers do,
    so a run keeps its form from the first step to the last.

    Attributes:
        GRAPH: TensorFlow's graph, operation by operation.
        XLA: XLA compiles a step, or, where micro-batches or a loss scale
            surround the reduction, or several replicas take part in it, the
            part of it that precedes them: the gradients of a micro-batch.
        XLA_STACK: XLA compiles a loop over a stack of batches, so that many
            steps are one program. For a single replica and batches whose
            shapes are known.
    """

    GRAPH = "graph"
    XLA = "xla"
    XLA_STACK = "xla_stack"

    @classmethod
    def of(cls, jit_compile: bool | str) -> "Form | None":
        """The form that `Trainer.jit_compile` names; `None` for `"auto"`."""
        if isinstance(jit_compile, bool):
            return cls.XLA if jit_compile else cls.GRAPH
        return None if jit_compile == "auto" else cls(jit_compile)

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles what computes the gradients."""
        return self is not Form.GRAPH
