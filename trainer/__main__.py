"""`python -m trainer`."""

from trainer.runtime import signals

# A process that `multiprocessing` spawns imports this module, too.
if __name__ == "__main__":
    signals.hold()

from trainer.cli import main as command_line  # noqa: E402 - after the hold
from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN  # noqa: E402
from trainer.runtime.process_exit import end_process  # noqa: E402


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    code = command_line.main()
    # After a failure the peers may be gone, and exit handlers of TensorFlow's
    # would wait for them.
    end_process(code, at_once=code in (EXIT_FAILED, EXIT_START_AGAIN))


if __name__ == "__main__":
    main()
