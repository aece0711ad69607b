"""The names for authors of plugins, in addition to those of `trainer`.

Strategies, callbacks and data plugins, in this project and elsewhere, import
only from here and from `trainer`.
"""

from typing import TYPE_CHECKING

from trainer.runtime.lazy_names import lazy_names as lazy_names

if TYPE_CHECKING:
    from trainer.checkpoint import storage as storage
    from trainer.data.batches import Cut as Cut
    from trainer.data.feeding import Padded as Padded
    from trainer.errors import EXIT_START_AGAIN as EXIT_START_AGAIN
    from trainer.errors import nearest as nearest
    from trainer.errors import outside_graph as outside_graph
    from trainer.loop.evaluation_sets import names_in_logs as names_in_logs
    from trainer.loop.logged import Media as Media
    from trainer.loop.logged import histogram as histogram
    from trainer.loop.logger import Entry as Entry
    from trainer.loop.monitor import Monitor as Monitor
    from trainer.loop.schedule import Ticker as Ticker
    from trainer.python.tables import html_table as html_table
    from trainer.runtime import files as files
    from trainer.runtime import run_paths as run_paths
    from trainer.runtime import schema as schema
    from trainer.runtime import signals as signals
    from trainer.runtime.files import write_whole as write_whole
    from trainer.runtime.graph import graph_function as graph_function
    from trainer.runtime.graph import repeat as repeat
    from trainer.runtime.memory import peak_memory as peak_memory
    from trainer.runtime.private_names import require as require
    from trainer.runtime.process_exit import give_up as give_up
    from trainer.runtime.report import Row as Row
    from trainer.runtime.report import Section as Section
    from trainer.runtime.report import show as show
    from trainer.runtime.standard_streams import say as say
    from trainer.runtime.standard_streams import say_now as say_now
    from trainer.step.forms import StrategyOptions as StrategyOptions
    from trainer.step.operations import operations_of as operations_of
    from trainer.step.programs import Program as Program
    from trainer.step.programs import Programs as Programs
    from trainer.step.reductions.sums import Sums as Sums
    from trainer.strategy.cluster.ranks import read_number as read_number
    from trainer.strategy.cluster.resolve import (
        resolve_cluster as resolve_cluster,
    )
    from trainer.strategy.cluster.spec import Cluster as Cluster
    from trainer.strategy.cluster.spec import split_address as split_address
    from trainer.strategy.graph_loop import GraphLoop as GraphLoop
    from trainer.strategy.graph_loop import Step as Step
    from trainer.strategy.plugin import Detection as Detection
    from trainer.strategy.plugin import MakeDataset as MakeDataset
    from trainer.values.annotations import Direction as Direction
    from trainer.values.annotations import Finite as Finite
    from trainer.values.annotations import Job as Job
    from trainer.values.annotations import Names as Names
    from trainer.values.annotations import Natural as Natural
    from trainer.values.annotations import NotNegative as NotNegative
    from trainer.values.annotations import Positive as Positive
    from trainer.values.annotations import Seconds as Seconds
    from trainer.values.annotations import Split as Split
    from trainer.values.annotations import Text as Text
    from trainer.values.configurable import checked as checked
    from trainer.values.configurable import configurable as configurable
    from trainer.values.periods import Period as Period
    from trainer.values.periods import PeriodLike as PeriodLike
    from trainer.values.periods import Time as Time
    from trainer.values.periods import parse_period as parse_period

__getattr__, __dir__ = lazy_names(__name__)
