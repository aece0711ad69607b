"""`python -m trainer`."""

import sys

if sys.platform == "win32":
    sys.stderr.write(
        "error: trainer does not run on Windows: run it in WSL 2, as "
        "TensorFlow's own installation guide says.\n"
    )
    sys.exit(2)

# Below this: it needs what Windows does not have.
from trainer.errors import EXIT_FAILED, EXIT_START_AGAIN  # noqa: E402
from trainer.runtime import signals, standard_streams  # noqa: E402
from trainer.runtime.process_exit import end_process  # noqa: E402


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    # First: whatever is opened must not get the number of a closed stream.
    standard_streams.protect()
    try:
        signals.hold()
        # Not before: what is imported here may start threads.
        from trainer.cli import main as command_line

        code = command_line.main()
        signals.settle()
    except signals.Terminated as error:
        # SIGTERM may come inside `hold`, or after the last line of that main.
        standard_streams.say(f"start again: {error}")
        code = EXIT_START_AGAIN
    # After a failure the peers may be gone, and TensorFlow's exit handlers
    # would wait for them.
    end_process(code, at_once=code in (EXIT_FAILED, EXIT_START_AGAIN))


if __name__ == "__main__":
    main()
