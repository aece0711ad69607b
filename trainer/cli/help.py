"""The output of `--help` and `--strategy=help`."""

import inspect
import textwrap

from trainer.cli import flags
from trainer.errors import UserError

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
its traceback, or training diverged, with one error message.
"""
WHAT_NEXT = """\
There is nothing to run yet. What next?
  python -m trainer --gin_file=experiments/digits.gin   train on digits, 30 s
  python -m trainer.tools.new NAME     write a small project to begin with
  python -m trainer --help             all flags
  python -m trainer.tools.runs         compare the runs in runs/
"""


def help_text() -> str:
    """Returns the output of `--help`: usage, all flags, an example."""
    values = flags.define()
    listed = map(values.module_help, flags.GROUPS)
    return "\n".join([_USAGE.rstrip(), *listed, "", _PRECEDENCE])


def strategies_text() -> str:
    """Returns a line for each installed strategy, and what is found here."""
    # Not at the top: it imports TensorFlow, and `--help` needs none.
    from trainer.strategy.registry import strategies

    lines, found, wrong = [], [], []
    for name, plugin in sorted(strategies().items()):
        try:
            if (detection := plugin.detect()) is not None:
                found.append(f"{name} ({detection.found})")
        # A broken TF_CONFIG should show here, and not hide the others.
        except UserError as error:
            wrong.append(f"{name}: {error}")
        about = (inspect.getdoc(plugin) or "").partition("\n")[0]
        lines.append(f"{name:<22} {about}")
    here = (
        f"Found here: {', '.join(found)}. --strategy=auto takes the best one."
    )
    lines += ["", *textwrap.wrap(here, 79), *wrong]
    return "\n".join([*lines, "See docs/scale/strategies.md for more.", ""])
