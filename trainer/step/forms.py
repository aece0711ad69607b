"""The compiled forms of a step, and which of them a strategy allows."""

import dataclasses
import enum


class Form(enum.StrEnum):
    """How the steps of a run are compiled.

    All forms compute the same step, of equal random numbers. They round
    differently, as compilers do, so a step's number alone says which form it
    has, however a run was cut.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """The abilities of a strategy plugin, and the needs of its devices.

    Attributes:
        static_shapes: every batch has the same shape: a short training
            batch is dropped, a short evaluation batch is padded. There
            `Trainer.eval_step` gets `(x, y, sample_weight)` whatever the data
            yields; the weight of padding is zero.
        loops_on_replicas: a replica may reduce inside a loop or a condition,
            so the whole step is one program there; elsewhere loops and
            conditions are around the replicas. Needs static shapes.
        reduces_logs: a step's results are summed over replicas within the
            step, and the loop reads those of one replica.
        reduces_sparse: gradients of embeddings travel as the rows they touch;
            otherwise they are made dense first.
        batches_by_step: which batch a step takes follows from its number, as
            `StrategyPlugin.distribute` was given them.
        takes_stacks: a single replica in this process, whose steps over a
            stack of batches can be one program of XLA.
        carries_states: each training step sees what the one before it left, so
            that metrics may depend on the order of batches.
        evaluates_here: evaluation steps run in this process, so that it can
            hold predictions, and states of metrics that are no sums.
    """

    # The defaults are those of a strategy whose replicas run in this process
    # on plain devices.
    static_shapes: bool = False
    loops_on_replicas: bool = False
    reduces_logs: bool = False
    reduces_sparse: bool = True
    batches_by_step: bool = True
    takes_stacks: bool = False
    carries_states: bool = True
    evaluates_here: bool = True
