"""Examples: models, data and Trainers, and the gin files that use them."""

import pathlib

_HERE = pathlib.Path(__file__).parent
_INSTALLED = _HERE / "gin_files"

# Where the gin files are: installed, in this package; in a checkout beside it.
GIN_FILES = str(_INSTALLED if _INSTALLED.is_dir() else _HERE.parent)
