"""`python -m trainer`: from the command line to an exit code."""

import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import absl.flags
from absl import logging

from trainer.cli import ending, flags
from trainer.cli.command import default_path, experiment_name
from trainer.cli.help import WHAT_NEXT, help_text, strategies_text
from trainer.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_START_AGAIN,
    EXIT_USER_ERROR,
    StartAgain,
    UserError,
)
from trainer.python import brief
from trainer.run_options import TRAINING_MODES
from trainer.runtime import signals
from trainer.runtime.import_tensorflow import (
    load_tensorflow,
    without_collections,
)
from trainer.runtime.process_exit import ExitReport, headline, last_words
from trainer.runtime.run_lock import DirectoryLost
from trainer.runtime.run_paths import check_path, plain
from trainer.runtime.standard_streams import (
    Saying,
    clean,
    require_output,
    say_now,
)

if TYPE_CHECKING:
    from trainer.cli.config.gin_private import Origins


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
    wants_help = bool(flags.HELP_FLAGS.intersection(given))
    report = ExitReport()
    try:
        if wants_help:
            _print(help_text())
            code = EXIT_DONE
        else:
            code = _execute(given, report)
    # SystemExit too: the user's code must not end a run, least of all with 0.
    except BaseException as raised:
        error = signals.interruption() or raised
        ending.show(error)
        code = ending.ending_of(error).exit_code
        report.write(code, error)
        return code
    report.write(code)
    return code


def _execute(arguments: list[str], report: ExitReport) -> int:
    """Does what a command line says; returns the exit code."""
    if not arguments:
        sys.stderr.write(WHAT_NEXT)
        return EXIT_USER_ERROR
    _check_working_directory()
    request = flags.parse(arguments)
    if request.is_run and request.model_dir is not None:
        check_path(plain(request.model_dir))
    if sys.stderr.isatty():
        logging.get_absl_logger().addHandler(Saying())
    else:
        logging.use_absl_handler()
    logging.get_absl_logger().addFilter(clean)
    logging.set_verbosity(request.verbosity)
    # `import models` in a gin file means a module in the current folder.
    # `python -m` puts it on the path, but a console script does not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    # Not at the top, because it imports gin.
    from trainer.cli.config import paths, reader

    # Before the seconds that TensorFlow takes to import.
    for path in request.gin_file:
        paths.locate(path, request.search_path)
    # A process that had other things to do before may want to see what it has
    # collected.
    say_now("importing TensorFlow")
    with without_collections(freeze="tensorflow" not in sys.modules):
        load_tensorflow()
        register()
    brief.turn_off()
    origins = reader.load(
        request.gin_file, request.bindings, search_path=request.search_path
    )
    # Modules that a gin file imports may read absl flags of their own.
    absl.flags.FLAGS.mark_as_parsed()
    if request.list_strategies:
        _print(strategies_text())
        return EXIT_DONE
    if request.mode == "print_config":
        import gin

        _print(gin.config_str())
        return EXIT_DONE
    results = _run(request, origins, arguments, report)
    # In the modes that train, callbacks have shown them; a check has a report.
    if request.mode not in (*TRAINING_MODES, "check"):
        for name, value in results.items():
            shown = f"{value:.6g}" if isinstance(value, float) else value
            _print(f"{name}: {shown}\n")
    return EXIT_DONE


def _print(text: str) -> None:
    """Prints a result, for which a lost line is a failure."""
    sys.stdout.write(text)
    require_output()


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"The working directory cannot be used: {error.strerror}. It may "
            "have been deleted: change to another one (cd)."
        ) from None


@functools.cache
def register() -> None:
    """Registers everything with gin that a gin file need not import."""
    # Not at the top, because these import TensorFlow and Keras.
    import gin
    import tensorflow as tf

    import trainer.experiment  # noqa: F401 - registers `run`
    from trainer.cli.config.keras_names import register_keras
    from trainer.strategy.registry import load_plugins

    # For user code that reads further gin files.
    gin.config.register_file_reader(tf.io.gfile.GFile, tf.io.gfile.exists)
    load_plugins()
    register_keras()


def _run(
    request: flags.Request,
    origins: "Origins",
    arguments: list[str],
    report: ExitReport,
) -> dict[str, float]:
    """Runs the experiment, and records its beginning and its end."""
    from trainer import experiment
    from trainer.cli.config.checks import user_error_in
    from trainer.cli.config.unused import check_all_used
    from trainer.cli.run_dir import RunDir

    name = experiment_name(request.gin_file)
    path = plain(request.model_dir or default_path(name))
    if request.model_dir is None:
        # Then the command that is recorded continues with this run, too.
        arguments = [*arguments, f"--model_dir={path}"]
    run_dir = RunDir(path, experiment=name, arguments=arguments)
    # continuous_eval may start before the run that it follows.
    run_dir.check(must_exist=request.mode in ("eval", "export"))
    # On stdout and before the first step, so that a script can read the default
    # path of a run that is still going on.
    if request.mode != "check":
        sys.stdout.write(f"model_dir: {path}\n")
        sys.stdout.flush()

    # For a process that gives up while its main thread hangs: it ends without
    # returning from here.
    def record_exit(reason: str, hangs: bool) -> bool:
        again = run_dir.give_up(reason, hangs)
        code = EXIT_FAILED if again else EXIT_START_AGAIN
        report.write(code, StartAgain(reason))
        return again

    unused: list[str] = []
    try:
        with (
            last_words(record_exit),
            experiment.build(mode=request.mode, model_dir=path) as run,
        ):
            # Everything is built and restored, and nothing has been written.
            # A parameter server or its worker has no Trainer.
            if run.call is not None:
                report.begin(run.call)
            if run.trains or run.mode == "check":
                unused = check_all_used(
                    origins,
                    selected=run.plugin,
                    flags=request.named_flags,
                    only_warn=request.allow_unused_bindings,
                )
            # Evaluation and export do not touch the run's record, because the
            # run may still be training.
            if run.trains and run.call and run.plugin.is_chief:
                run_dir.start(run.call)
            results = run.run()
            if run.tool is not None and run.plugin.is_chief:
                run.tool.report(unused, request.model_dir)
    except BaseException as raised:
        error = signals.interruption() or raised
        # Gin calls constructors while a run is built, so a bad binding surfaces
        # here, far from the line that set it.
        found: Exception | None = user_error_in(error, origins)
        found = found or run_dir.why_not_usable(error)
        if tool := experiment.tool_of(request.mode):
            tool.failed(headline(found or error), request.model_dir)
        end = ending.ending_of(found or error)
        leaves = isinstance(error, StartAgain | KeyboardInterrupt)
        if leaves and (how := run_dir.continued_with()):
            error.add_note(how)
        if not isinstance(error, DirectoryLost):
            run_dir.finish(end.reason, headline(found or error))
        if found is None or found is raised:
            raise
        raise found from error
    run_dir.finish("done")
    return results
