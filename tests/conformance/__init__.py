"""The suite that every strategy plugin must pass.

    python -m pytest tests/conformance --conformance-strategy=NAME

runs it against a strategy of your own: its package must be installed with an
entry point of the group `trainer.plugins`.
"""
