"""The strategy parameter_server: its plugin and what only that needs."""

from trainer_plugins.strategies.parameter_server.plugin import ParameterServer

__all__ = ["ParameterServer"]
