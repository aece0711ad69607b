"""Which combinations of strategy and option are frozen, and how."""

from tests.frozen.running import ROOT, STRATEGIES, name_of

_TOKENS = f"--gin_file={ROOT}/tests/frozen/tokens.gin"
# Gradients that float16 holds, but for those of one batch: it overflows.
_FLOAT16 = (
    "--mixed_precision=mixed_float16",
    "--gin.Trainer.data=@data_with_a_fault",
    "--gin.regression_data.scale=0.1",
    "--gin.regression_model.scale=0.1",
)
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
    "loss_scale": (*_FLOAT16, "--mode=train"),
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
        *_FLOAT16,
        # Micro-batches then differ in what they are divided by.
        "--gin.losses.MeanSquaredError.reduction='mean_with_sample_weight'",
        "--gin.Trainer.guard=@Guard()",
        "--gin.Trainer.accumulation_steps=2",
        "--gin.Trainer.ema_momentum=0.9",
    ),
    "tokens": (_TOKENS, "--mode=train"),
    "dropout": ("--gin.regression_model.dropout=0.3", "--mode=train"),
}
CELLS = [f"{s}/{o}" for s in STRATEGIES for o in OPTIONS]

# Those of the ordinary suite; the other ones are in the long one. A cluster's
# cost six times as much: the ordinary suite has only interrupted runs of them.
_ORDINARY = {
    "default": (
        "plain",
        "guard",
        "xla",
        "own_step",
        "static_shapes",
        "dropout",
    ),
    "one_device": ("accumulation",),
    "mirrored:2": ("xla", "everything"),
    "mirrored:3": ("tokens",),
    "central_storage:2": ("loss_scale", "averages"),
}
ORDINARY = {f"{s}/{o}" for s, options in _ORDINARY.items() for o in options}

# What must be refused, and the parameter that the sentence names.
REFUSED = {
    f"{s}/xla": "jit_compile"
    for s in STRATEGIES
    if s not in ("default", "one_device")
}

# What is not promised to be the same bytes in equal runs.
WITHOUT_BYTES = {
    "parameter_server@1+1/guard": "workers read on after a fault, and nobody "
    "promises how far",
}

# Dropout's masks differ between strategies, and parameter servers drop more
# than the batch at fault.
NOT_ALIKE = {"dropout"}
NOT_LIKE_ONE_DEVICE = {"parameter_server@1+1/guard"}

# How far a result may be from the frozen one on another machine, relative to
# 1 or to the value. Strategies are up to 2.1e-6 apart, in float16 7.5e-4.
TOLERANCE, FLOAT16_TOLERANCE = 1e-5, 2e-3


def split(cell):
    """Strategy and option."""
    strategy, _, option = cell.partition("/")
    return strategy, option


def flags(cell):
    """The flags of a combination."""
    strategy, option = split(cell)
    if option == "static_shapes":
        return (f"--strategy=static_{name_of(strategy)}",)
    return OPTIONS[option]


def tolerance(cell):
    """See `TOLERANCE`."""
    return FLOAT16_TOLERANCE if _FLOAT16[0] in flags(cell) else TOLERANCE
