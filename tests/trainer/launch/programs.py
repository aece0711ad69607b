"""The programs of simulated tasks.

A program is a generator function. It is given its `SimulatedProcess`, yields
the seconds that pass, and returns its exit code, or the negative number of the
signal that ends it.
"""

import math
import signal


def stays(*, until=math.inf, deaf=False):
    """Ends well at a time, on the simulation's clock."""

    def program(process):
        if deaf:
            process.handlers[signal.SIGTERM] = signal.SIG_IGN
        yield max(0.0, until - process.simulation.now)

    return program


def ends(*codes, after=0.1, then=None):
    """Ends in each life with the next of some exit codes.

    Args:
        *codes: exit codes, or functions of the process that return one.
        after: the seconds that each such life takes.
        then: the program of all later lives; if `None`, the last of the exit
            codes is that of all later lives, too.
    """

    def program(process):
        if then is not None and process.life > len(codes):
            yield from then(process)
            return 0
        yield after
        code = codes[min(process.life, len(codes)) - 1]
        return code(process) if callable(code) else code

    return program


def failing(text="no", step=40):
    """For `ends`: a failure; the step may be a function of the life."""
    return lambda process: process.fail(
        text, step(process.life) if callable(step) else step
    )


def leaving(step=40):
    """For `ends`: an end with 75, with a report of the step."""
    return lambda process: process.leave(step)


def trains(program, *, step=0):
    """Makes a program say that it may have something to save."""

    def training(process):
        process.begin_to_train(step)
        return (yield from program(process))

    return training


def stops(*, lives=1, after=0.1, then):
    """Is stopped (SIGSTOP) in its first processes."""

    def program(process):
        if process.life <= lives:
            yield after
            process.signal(signal.SIGSTOP)
            yield 0.0
        yield from then(process)

    return program
