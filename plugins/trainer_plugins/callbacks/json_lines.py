"""The place of `JsonLines` before `trainer_plugins.loggers` was there."""

from trainer_plugins.loggers.json_lines import JsonLines as JsonLines
