"""The text of `--help`."""

import textwrap

from trainer.cli.flag_table import GROUPS, Flag

_USAGE = """\
Trains and evaluates a Keras model on any tf.distribute strategy.

Usage:
  python -m trainer --gin_file=FILE [--gin.NAME.PARAMETER=VALUE ...] [flags]
"""
_PRECEDENCE = """\
Later ones win: gin files in order, --gin_param, --gin.NAME.PARAMETER, named
flags. Gin values are Python literals, so a string needs its own quotes.

Example:
  python -m trainer --gin_file=experiments/digits.gin \\
      --model_dir=/tmp/digits --strategy=mirrored --virtual_devices=2 \\
      --gin.Adam.learning_rate=0.003 --gin.Trainer.precision="'float32'"

Exit codes: 0 done; 2 a mistake in the flags or files; 75 preempted, lost a
peer, or hung: run the same command again, it continues from the newest
checkpoint; 130 Ctrl-C (with @Preemption() the second one); 1 a failure, with
its traceback, or training diverged, in one sentence.
"""
WHAT_NEXT = """\
There is nothing to run yet. What next?
  python -m trainer --gin_file=experiments/digits.gin   train on digits, 30 s
  python -m trainer.tools.new NAME   write a small project to begin with
  python -m trainer --help           all flags
  python -m trainer.tools.runs       compare the runs in runs/
"""
_VALUES = {
    "integer": "=N",
    "float": "=X",
    "list": "=A,B",
    "boolean": "",
}
_INDENT = 26


def help_text() -> str:
    """Returns the output of `--help`: usage, all flags, an example."""
    parts = [_USAGE]
    for title, flags in GROUPS.items():
        lines = [f"{title}:"]
        for flag in flags:
            lines += _describe(flag)
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, _PRECEDENCE])


def _describe(flag: Flag) -> list[str]:
    left = f"  --{flag.name}{_VALUES.get(flag.kind, '=VALUE')}"
    text = flag.help
    if flag.choices:
        text = f"{text} One of: {', '.join(flag.choices)}."
    if flag.name == "mode":
        text += " Default: train_and_eval."
    wrapped = textwrap.wrap(text, 79 - _INDENT)
    if len(left) < _INDENT:
        lines = [left.ljust(_INDENT) + wrapped[0]]
    else:
        lines = [left, " " * _INDENT + wrapped[0]]
    return lines + [" " * _INDENT + line for line in wrapped[1:]]
