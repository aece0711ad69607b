"""An object store beneath TensorFlow, which the tests build: `objects://`.

TensorFlow's client of `gs://` has its endpoints compiled in, and Python's file
functions do not reach what TensorFlow itself writes. So this is a file system
plugin in C++, `objects.cc`, with that client's semantics.
"""

import os
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).with_name("objects.cc")


def build(folder):
    """Compiles the plugin; returns its path."""
    import tensorflow as tf

    path = folder / "objects.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", "-o", path, SOURCE]
        + tf.sysconfig.get_compile_flags()
        + tf.sysconfig.get_link_flags(),
        check=True,
    )
    return path


def register():
    """Registers the plugin that the environment names, in this process."""
    import tensorflow as tf

    # TensorFlow refuses a second time.
    if "objects" not in tf.io.gfile.get_registered_schemes():
        path = os.environ["OBJECTS_PLUGIN"]
        tf.experimental.register_filesystem_plugin(path)
