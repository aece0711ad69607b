"""`--sweep`: one run for each combination of some values.

Nothing here imports TensorFlow: each run is a process of its own.
"""
