"""`python -m trainer`."""

from trainer.cli import main as command_line
from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN
from trainer.runtime.process_exit import end_process


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    code = command_line.main()
    # After a failure the peers may be gone, and TensorFlow's exit handlers
    # would wait for them.
    end_process(code, at_once=code in (EXIT_FAILED, EXIT_START_AGAIN))


if __name__ == "__main__":
    main()
