"""`python -m trainer`: from the command line to an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags
from absl import logging

from trainer.cli import flags
from trainer.cli.config.paths import locate
from trainer.cli.default_path import default_path, experiment_name
from trainer.cli.flag_table import HELP_FLAGS, TRAINING_MODES
from trainer.cli.help import help_text
from trainer.cli.import_tensorflow import load_tensorflow
from trainer.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    Diverged,
    StartAgain,
    UserError,
)
from trainer.runtime import signals
from trainer.runtime.exit_report import ExitReport, headline
from trainer.runtime.local_files import plain
from trainer.runtime.process_exit import last_words

if TYPE_CHECKING:
    from trainer.cli.config.reader import Origins
    from trainer.cli.run_dir import RunDir
    from trainer.trainer import Trainer

EXIT_INTERRUPTED = 130  # As a shell reports a process that Ctrl-C has ended.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0 for done, 2 for a user's mistake, 75 for a restart,
        130 for an interrupt, 1 for any other failure. The error is on stderr.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Before parsing: `--help` must work next to a mistyped flag.
    if HELP_FLAGS.intersection(given):
        sys.stdout.write(help_text())
        return EXIT_DONE
    report = ExitReport()
    try:
        _execute(given, report)
    except (Exception, KeyboardInterrupt, signals.Terminated) as raised:
        error = signals.interruption() or raised
        code = _print_error(error)
        report.write(code, error)
        return code
    report.write(EXIT_DONE)
    return EXIT_DONE


def _print_error(error: BaseException) -> int:
    """Prints to stderr what ended the run; returns the exit code."""
    if isinstance(error, UserError):
        sys.stderr.write(f"error: {_message(error)}\n")
        return EXIT_USER_ERROR
    if isinstance(error, StartAgain):
        sys.stderr.write(f"start again: {_message(error)}\n")
        return EXIT_START_AGAIN
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    if isinstance(error, Diverged):
        sys.stderr.write(f"error: {_message(error)}\n")
        return EXIT_FAILED
    traceback.print_exception(error)
    return EXIT_FAILED


def _message(error: BaseException) -> str:
    # Not at the top, because this imports gin and TensorFlow.
    from trainer.cli.config.errors import plain

    return plain(error)


def _execute(arguments: list[str], report: ExitReport) -> None:
    request = flags.parse(arguments)
    gin_files = [
        locate(path, request.gin_search_path) for path in request.gin_files
    ]
    # Other libraries read their absl flags, which raises before parsing.
    absl_flags.FLAGS(["trainer"])
    logging.use_absl_handler()
    logging.set_verbosity(request.verbosity)
    # Only now, so that a mistake in the flags is reported without the seconds
    # that the import takes.
    load_tensorflow()
    if request.list_strategies:
        from trainer.cli.strategy_table import print_strategies

        print_strategies()
        return
    origins = _configure(request, gin_files)
    if request.mode == "print_config":
        import gin

        sys.stdout.write(gin.config_str())
        return
    _run(request, origins, arguments, report)


def _configure(request: flags.Request, gin_files: list[str]) -> "Origins":
    """Registers everything with gin, then reads the configuration."""
    # Not at the top, because these import TensorFlow and Keras.
    import trainer.experiment  # noqa: F401 - registers `run`
    from trainer.cli.config.keras_configurables import register_keras
    from trainer.cli.config.reader import load
    from trainer.strategy.registry import load_plugins

    # `import models` in a gin file means a module in the current folder.
    # `python -m` puts it on the path, but a console script does not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    load_plugins()
    register_keras()
    return load(
        gin_files, request.bindings, search_path=request.gin_search_path
    )


def _run(
    request: flags.Request,
    origins: "Origins",
    arguments: list[str],
    report: ExitReport,
) -> None:
    from trainer.cli.config.binding_errors import user_error_in
    from trainer.cli.run_dir import RunDir
    from trainer.cli.run_status import RunIsOver
    from trainer.experiment import run

    experiment = experiment_name(request.gin_files)
    path = plain(request.model_dir or default_path(experiment))
    # On stdout and before the first step, so that a script can read the default
    # path of a run that is still going on.
    if request.mode != "check":
        sys.stdout.write(f"model_dir: {path}\n")
        sys.stdout.flush()
    run_dir = RunDir(path, experiment=experiment, arguments=arguments)
    # continuous_eval may start before the run that it follows.
    run_dir.check(must_exist=request.mode in ("eval", "export"))
    before = _BeforeFirstStep(request, origins, run_dir, report)

    # For a process that gives up while its main thread hangs: it ends without
    # returning from `run`.
    def record_exit(reason: str) -> None:
        run_dir.finish("start_again", reason)
        report.write(EXIT_START_AGAIN, StartAgain(reason))

    try:
        with last_words(record_exit):
            results = run(
                mode=request.mode,
                model_dir=path,
                before_first_step=before,
                is_over=RunIsOver(path),
            )
    except BaseException as raised:
        error = signals.interruption() or raised
        # Gin calls constructors during `run`, so a bad binding surfaces here,
        # far from the line that set it.
        found = user_error_in(error, origins)
        # A full disk in the middle of a run is a failure; before the first step
        # it is a mistake in the flags.
        if found is None and not before.passed:
            found = _unwritable(error, run_dir)
        run_dir.finish(_reason(found or error), headline(found or error))
        if found is None or found is raised:
            raise
        raise found from error
    run_dir.finish("done")
    _report(request.mode, results)


class _BeforeFirstStep:
    """Checks and records the run once everything is built, before a step runs.

    Attributes:
        passed: whether it has been called without finding a mistake.
    """

    def __init__(
        self,
        request: flags.Request,
        origins: "Origins",
        run_dir: "RunDir",
        report: ExitReport,
    ) -> None:
        self._request = request
        self._origins = origins
        self._run_dir = run_dir
        self._report = report
        self.passed = False

    def __call__(self, trainer: "Trainer") -> None:
        from trainer.cli.config.lint import check_all_used

        self._report.trainer = trainer
        mode = self._request.mode
        if mode in TRAINING_MODES or mode == "check":
            check_all_used(
                self._origins,
                selected=trainer.plugin,
                flags=_named(self._request),
                only_warn=self._request.allow_unused_bindings,
            )
        # Evaluation and export do not touch the run's record, because the
        # run may still be training.
        if mode in TRAINING_MODES and trainer.plugin.is_chief:
            self._run_dir.start(
                trainer.plugin,
                data_resume=trainer.batches("train").resume,
                accounts=trainer.accounts,
            )
        self.passed = True


def _named(request: flags.Request) -> dict[str, str]:
    """Returns the named flags by the parameter that they set."""
    return {
        binding.parameter.split(".")[1]: binding.source
        for binding in request.bindings
        if binding.parameter
    }


def _unwritable(error: BaseException, run_dir: "RunDir") -> UserError | None:
    """Returns an error if the run directory caused a file operation to fail."""
    from trainer.runtime.atomic_files import REFUSALS

    if not isinstance(error, REFUSALS):
        return None
    return run_dir.why_not_writable()


def _reason(error: BaseException) -> str:
    if isinstance(error, UserError):
        return "user_error"
    if isinstance(error, StartAgain):
        return "start_again"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, Diverged):
        return "diverged"
    return "error"


def _report(mode: str, results: Any) -> None:
    """Prints the results of modes in which no callback shows them."""
    if mode in TRAINING_MODES or not results:
        return
    for name, value in results.items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        sys.stdout.write(f"{name}: {shown}\n")
