"""`python -m trainer` or another module, with `objects://` paths.

python -m tests.object_store MODULE [ARGUMENT...]
"""

import runpy
import sys

from tests.object_store import register

register()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
