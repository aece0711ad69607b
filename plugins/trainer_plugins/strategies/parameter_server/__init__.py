"""The strategy parameter_server: its plugin and the parts of it."""

from trainer_plugins.strategies.parameter_server.plugin import ParameterServer

__all__ = ["ParameterServer"]
