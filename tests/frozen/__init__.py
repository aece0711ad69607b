"""Numbers of the commit that added this, to hold later ones against.

Tests here know nothing of how the project is built: only what users write,
and the files that a run leaves behind.
"""
