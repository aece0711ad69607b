"""The suite that every strategy plugin must pass.

    python -m trainer_conformance NAME

runs it, where this project is installed, against a strategy of your own: its
package must offer it by an entry point of the group `trainer.plugins`. NAME:N
gives it N virtual devices, NAME@N starts N workers, NAME@N+M also M servers.
In a checkout the suite is `tests/conformance`.
"""
