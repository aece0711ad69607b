"""Which combinations of strategy and option are frozen."""

from tests.frozen.running import ROOT, STRATEGIES, name_of

_TOKENS = f"--gin_file={ROOT}/tests/frozen/tokens.gin"
OPTIONS = {
    "plain": (),
    # A batch explodes; the run goes back, and on without it.
    "guard": (
        "--gin.Trainer.guard=@Guard()",
        "--gin.Guard.action='roll_back'",
        "--gin.Guard.max_gradient_norm=1000.0",
        "--gin.Trainer.data=@data_with_a_fault",
        "--gin.Checkpoint.every=5",
        "--mode=train",
    ),
    "loss_scale": ("--mixed_precision=mixed_float16", "--mode=train"),
    "accumulation": ("--gin.Trainer.accumulation_steps=2", "--mode=train"),
    # What is evaluated are the averages.
    "averages": ("--gin.Trainer.ema_momentum=0.9",),
    "xla": ("--jit_compile", "--mode=train"),
    "own_step": (
        "--gin.run.trainer=@OwnStep",
        "--gin.Trainer.optimizer={'hidden': @Adam, 'out': @SGD}",
        "--gin.SGD.momentum=0.9",
        "--gin.SGD.clipnorm=0.5",
        "--gin.Trainer.metrics=()",
        "--mode=train",
    ),
    "static_shapes": (),
    "everything": (
        "--gin.Trainer.guard=@Guard()",
        "--mixed_precision=mixed_float16",
        "--gin.Trainer.accumulation_steps=2",
        "--gin.Trainer.ema_momentum=0.9",
    ),
    "tokens": (_TOKENS, "--mode=train"),
    "dropout": ("--gin.regression_model.dropout=0.3", "--mode=train"),
}
CELLS = [(s, o) for s in STRATEGIES for o in OPTIONS]


def flags(strategy, option):
    """The flags of a combination."""
    if option == "static_shapes":
        return (f"--strategy=static_{name_of(strategy)}",)
    return OPTIONS[option]
