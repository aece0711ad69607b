"""Starts of Python that do not import TensorFlow each time.

An import of TensorFlow is four seconds of CPU, and the tests start a thousand
processes. While `forked_starts` is installed, `subprocess` starts Python as a
fork of one process that has imported TensorFlow and nothing of this project;
so do the children, such as a launcher. Everything else is as it was: the new
process is a child of its starter, with a number, environment, session and
files of its own, and it runs the code of this checkout from the first line.

Some things only a plain start shows, and those are started plainly: options
of the interpreter, variables that Python, Keras or TensorFlow read when they
are imported, and whatever runs under the fixture `plain_starts` or with
`--plain-starts`.
"""
