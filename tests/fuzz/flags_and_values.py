"""Cases of flags and of gin values; what is right is written by hand."""

import random

from tests.fuzz.case import EITHER, NONSENSE, SENSE, Case

_NOT_WHOLE = ["x", "", "1.5", "NaN", "inf", "1e3", "--", "True", "٣x"]
_NOT_NUMBERS = ["x", "", "NaN", "-inf", "inf", "1,5", "None", "[1]"]
_HUGE = "9" * 30
# By flag: what is nonsense, and what is sense.
FLAGS = {
    "train_steps": ([*_NOT_WHOLE, "0", "-1", _HUGE], ["1", "5"]),
    "batch_size": ([*_NOT_WHOLE, "0", "-8", _HUGE], ["1", "32"]),
    "steps_per_loop": ([*_NOT_WHOLE, "0", "-1", _HUGE], ["1", "5"]),
    "learning_rate": ([*_NOT_NUMBERS, "-1", "1e300"], ["0.5", "0", "1e-3"]),
    "seed": ([*_NOT_WHOLE, "-1", _HUGE, "4294967296"], ["0", "4294967295"]),
    "mode": (["trian", "", "TRAIN", "5"], ["train", "check"]),
    "strategy": (["mirorred", "", "5", "default,mirrored"], ["one_device"]),
    "devices": (["gpu:99", "", ",", "cpu:x", "cpu:0,cpu:0"], []),
    "virtual_devices": ([*_NOT_WHOLE, "0", "-1", "100000", _HUGE], ["2"]),
    "mixed_precision": (["float8", "", "16"], ["float32", "mixed_bfloat16"]),
    "jit_compile": (["maybe", "2", "XLA", ""], ["true", "false", "xla_stack"]),
    "deterministic": (["maybe", "2"], ["true"]),
    "run_eagerly": (["maybe", "2"], ["true"]),
    "tpu": (["nowhere", ""], []),
    "tpu_topology": (["nowhere", "", "v5e:2x2"], []),
    "task_index": (["x", "-1", "3"], []),
    "task_type": (["boss", ""], []),
    "worker_hosts": (["", "a", "a:b", "a:1,a:1", "a:99999999"], []),
    "ps_hosts": (["", "a:1"], []),
    "init_from": (["nowhere", ""], []),
    "data_dir": (["nowhere", ""], []),
    "gin_file": (["nowhere.gin", "", ".", "/"], []),
    "gin_param": (
        ["", "x", "Adam", "Adam.x=", "=1", "a=%a", "a=1"],
        ["Trainer.seed=1"],
    ),
    "model_dir": (["\x7f/../" + "y" * 300, "/proc/nothing"], []),
    "verbosity": (["loud", "1.5"], ["0"]),
}
_TYPOS = ["--batchsize=4", "--learning-rate", "-x", "--gin", "--gin.=1", "run"]


def flags(rng: random.Random) -> list[Case]:
    """Every flag with every value above, and command lines of several."""
    cases = []
    for name, (nonsense, sense) in FLAGS.items():
        for kind, values in ((NONSENSE, nonsense), (SENSE, sense)):
            for value in values:
                flag = f"--{name}={value}"
                cases.append(Case(flag, kind, [flag]))
    cases += [Case(typo, NONSENSE, [typo]) for typo in _TYPOS]
    for number in range(20):
        names = rng.sample(sorted(FLAGS), 3)
        chosen = [
            f"--{name}={rng.choice([*FLAGS[name][0], *FLAGS[name][1]])}"
            for name in names
        ]
        cases.append(Case(f"several {number}: {chosen}", EITHER, chosen))
    for number in range(10):
        name = list(rng.choice(sorted(FLAGS)))
        name[rng.randrange(len(name))] = rng.choice("abcxyz_-")
        flag = f"--{''.join(name)}=1"
        cases.append(Case(f"typo {number}: {flag}", EITHER, [flag]))
    return cases


WORD, NONE = "'x'", "None"
NUMBERS = ["-1", "0", "1", "2.5", "1e999", "-1e999", "1000", "1e300", "9" * 30]
OTHERS = [
    WORD,
    "''",
    NONE,
    "True",
    "[]",
    "{}",
    "()",
    "[5]",
    "{'a': 5}",
    "['a']",
]
REFERENCES = [
    "@Guard",
    "@Guard()",
    "@Adam",
    "@small_model",
    "%three",
    "@Mirrored()",
]
ALL = [*NUMBERS, *OTHERS, *REFERENCES]
COUNT = {"1", "1000", "%three"}
SECONDS = {"1", "2.5", "1000", "%three"}
AMOUNT = {"1", "2.5", "1000", _HUGE, "%three"}
# By parameter: which of the above are sense. All others are nonsense.
VALUES = {
    "Trainer.batch_size": COUNT,
    "Trainer.seed": COUNT | {"0"},
    "Trainer.learning_rate": AMOUNT | {"0", NONE},
    "Trainer.accumulation_steps": COUNT,
    "Trainer.ema_momentum": {NONE},
    "Trainer.precision": {NONE},
    "Trainer.jit_compile": {"True"},
    "Trainer.sync_batch_norm": {"True"},
    "Trainer.recompute": {"[]", "()"},
    "Trainer.added_losses": {NONE, "{}"},
    "Trainer.guard": {NONE, "@Guard()"},
    "Trainer.class_weight": {NONE},
    "Trainer.data": set(),
    "Trainer.model": {"@small_model"},
    "Trainer.optimizer": {"@Adam"},
    "Trainer.loss": set(),
    "Trainer.data_dir": {NONE},
    "run.train_steps": COUNT,
    "run.steps_per_loop": COUNT,
    "run.log_every": COUNT,
    "run.eval_every": COUNT | {NONE},
    "run.eval_steps": COUNT | {NONE},
    "run.callbacks": set(),
    "run.trainer": set(),
    "run.deterministic": {"True"},
    "run.virtual_devices": COUNT | {NONE},
    "run.devices": {NONE},
    "run.task_type": {NONE},
    "run.init_from": {NONE},
    "run.strategy": set(),
    "Checkpoint.keep_last": COUNT,
    "Checkpoint.keep_best": COUNT | {"0"},
    "Checkpoint.every": COUNT | {NONE},
    "Checkpoint.asynchronous": {"True"},
    "Checkpoint.mode": set(),
    "EarlyStopping.patience": COUNT,
    "EarlyStopping.min_delta": AMOUNT | {"0"},
    "Guard.max_loss": AMOUNT | {"0", "-1", NONE},
    "Guard.max_rollbacks": COUNT,
    "Guard.action": set(),
    "Watchdog.step_seconds": SECONDS,
    "Preemption.grace_seconds": SECONDS | {NONE},
    "Progress.console": {NONE},
    "Adam.learning_rate": {"2.5"},
    "Adam.beta_1": {"0"},
    "Adam.epsilon": AMOUNT | {"0"},
    "Adam.amsgrad": {"True"},
    "Adam.clipnorm": AMOUNT | {NONE},
    "Adam.weight_decay": AMOUNT | {"0", NONE},
    "Adam.name": {WORD, NONE},
    "losses.MeanSquaredError.reduction": {NONE},
    "metrics.MeanAbsoluteError.name": {WORD, NONE},
}
# Whether these are sense depends on how Keras or the rest of the run sees it.
UNDECIDED = {
    ("Adam.learning_rate", "1000"),
    ("Trainer.accumulation_steps", "1000"),
    ("run.virtual_devices", "1000"),
    ("run.train_steps", "1000"),
    # Then what the file sets for callbacks has no effect.
    ("run.callbacks", "[]"),
    ("run.callbacks", "()"),
    ("Trainer.loss", NONE),
    ("Trainer.loss", "@small_model"),
    ("Trainer.data", "@small_model"),
    ("Trainer.data", "@Adam"),
    ("Trainer.data", "@Guard"),
    ("Trainer.accumulation_steps", "%three"),
    ("Adam.beta_1", "True"),
    ("Adam.epsilon", NONE),
    ("Adam.learning_rate", "@small_model"),
    ("Adam.learning_rate", "@Guard"),
    ("Adam.learning_rate", "@Adam"),
    ("Adam.learning_rate", "0"),
    ("Adam.learning_rate", "1"),
    ("Adam.learning_rate", "%three"),
    ("Adam.name", "''"),
    ("Adam.weight_decay", "True"),
    ("metrics.MeanAbsoluteError.name", "''"),
    ("Guard.max_loss", "0"),
    ("Guard.max_loss", "-1"),
}


def values(rng: random.Random) -> list[Case]:
    """Parameters of ours and of Keras, set to values of every kind."""
    pairs = [(name, value) for name in VALUES for value in ALL]
    cases = []
    for name, value in rng.sample(pairs, 260):
        kind = SENSE if value in VALUES[name] else NONSENSE
        if (name, value) in UNDECIDED:
            kind = EITHER
        # On the command line, or in a file.
        line = f"{name} = {value}"
        macro = "three = 3\n" if "%three" in value else ""
        text = f"include 'fuzz.gin'\n{macro}{line}\n"
        cases.append(
            Case(
                line,
                kind,
                ["--gin_file=case.gin"],
                {"case.gin": text.encode()},
                names=name.split(".")[-1] if kind == NONSENSE else "",
            )
        )
    return cases
