"""Which compiled form a run's steps have: given, recorded, or measured.

A run keeps the form of its first attempt, since forms round differently. So the
choice, once made, is a fact of the run, and no clock decides what it computes
after that.
"""

import dataclasses
import os
from typing import Annotated

import keras
from absl import logging
from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from tensorflow.python.framework import config

from trainer.data import Batches
from trainer.errors import UserError
from trainer.loop import form_cache
from trainer.loop.form_timing import Timing, time_forms
from trainer.loop.form_trial import why_unusable
from trainer.loop.length_timing import NOTHING_ELSE, time_graph, told
from trainer.loop.running_trainer import RunningTrainer
from trainer.runtime.files import exists, read, write_whole
from trainer.runtime.run_paths import refuse_links
from trainer.step.forms import Form
from trainer.step.keras.private import all_layers
from trainer.strategy.checks import why_not_in_form
from trainer.values.annotations import Positive

RECORD = "form.json"
# What `steps_per_loop="auto"` is where nothing was measured.
STEPS_PER_LOOP = 100
# A loop that is measured to be fast gets more steps, but still ends about once
# a second: logs, callbacks and signals wait for its end. Python's part of a
# loop with all default callbacks is about 10 ms.
_LOOP_SECONDS = 1.0
# Fewer are over before a measurement pays.
FEWEST_STEPS = 300
_LENGTHS = (2000, 1000, 500, 200)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Choice:
    """A compiled form and how long a host loop is.

    Attributes:
        form: of the step.
        steps_per_loop: the most steps in a host loop.
        why: a clause, for logs and the run directory.
        steps_per_second: what was measured, by form.
    """

    form: Form
    steps_per_loop: Annotated[Positive, Strict()]
    why: str
    steps_per_second: dict[Form, float] = Field(default_factory=dict)

    @classmethod
    def read(cls, model_dir: str | None) -> "Choice | None":
        """Reads the choice of the run that lives in a directory.

        Raises:
            UserError: the record is damaged, or a link.
        """
        if model_dir is None:
            return None
        refuse_links(model_dir, RECORD)
        path = os.path.join(model_dir, RECORD)
        if not exists(path):
            return None
        try:
            return _ADAPTER.validate_json(read(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise UserError(
                f"{path} does not say how the run's steps are compiled "
                f"({where}: {first['msg']}). Without it the run goes on as a "
                "graph: if that is what it was, remove it."
            ) from None

    def write(self, model_dir: str) -> None:
        """Records the choice in the run directory."""
        content = _ADAPTER.dump_json(self, indent=2) + b"\n"
        write_whole(os.path.join(model_dir, RECORD), content)


_ADAPTER = TypeAdapter(Choice)


def choose(
    trainer: RunningTrainer,
    batches: Batches,
    *,
    steps: int,
    recorded: Choice | None,
    use_cache: bool,
    may_measure: bool,
    takes_length: bool,
) -> Choice:
    """Chooses the form of a run's steps, before the first one that counts.

    All processes of a run call this at the same time.

    Args:
        trainer: built, restored, and prepared for tracing.
        batches: its training data.
        steps: the step at which training ends.
        recorded: the choice of an earlier attempt.
        use_cache: whether to read and write the user's cache.
        may_measure: whether to make steps, which are set back, to find out.
        takes_length: whether the length of host loops is to be chosen as well.

    Raises:
        UserError: the form that was asked for, or that the run has had so
            far, cannot be had.
    """
    asked = Form.of(trainer.jit_compile)
    if asked is not None:
        return _required(trainer, batches, _fixed(asked, "it was asked for"))
    plugin = trainer.plugin
    # XLA reaches no other process.
    forms = [Form.GRAPH] if not plugin.is_alone else [*Form]
    legal = [f for f in forms if why_not(trainer, batches, f) is None]
    choice = _known(trainer, batches, recorded)
    why = _why_not_measured(
        is_open=legal != [Form.GRAPH] or takes_length,
        steps=steps,
        may_measure=may_measure and plugin.why_only_checked is None,
    )
    if choice is None and why is not None:
        choice = _fixed(Form.GRAPH, why)
    key = None
    if choice is None and use_cache:
        key = form_cache.key(trainer, batches)
        choice = _cached(trainer, batches, legal, key)
    # One process may know what another does not: the chief's word counts.
    if told(plugin, choice is None):
        timing = (
            time_graph(trainer, batches)
            if legal == [Form.GRAPH]
            else time_forms(trainer, batches, legal, steps=steps)
        )
        if key is not None and timing.is_complete:
            form_cache.store(key, timing)
        choice = _measured(timing, timing.why)
    choice = choice or _fixed(Form.GRAPH, NOTHING_ELSE)
    length = told(plugin, choice.steps_per_loop)
    return dataclasses.replace(choice, steps_per_loop=length)


def _known(
    trainer: RunningTrainer, batches: Batches, recorded: Choice | None
) -> Choice | None:
    """What needs no measurement, or what no measurement may decide."""
    if recorded is not None:
        if why_not(trainer, batches, recorded.form) is None:
            return _required(trainer, batches, recorded)
        logging.warning(
            "The run's steps were compiled as %s, which is not possible here: "
            "they go on as a graph, which rounds differently.",
            recorded.form,
        )
        return _fixed(Form.GRAPH, f"{recorded.form} is not possible any more")
    # A run that is older than this choice was a graph.
    if trainer.step:
        return _fixed(Form.GRAPH, "the run has begun as one")
    # A clock is not deterministic.
    if config.is_op_determinism_enabled():
        return _fixed(Form.GRAPH, "the run is deterministic")
    return None


def _why_not_measured(
    *, is_open: bool, steps: int, may_measure: bool
) -> str | None:
    if not is_open:
        return NOTHING_ELSE
    if steps < FEWEST_STEPS:
        return f"{steps} steps are too few to measure"
    return None if may_measure else "nothing is measured before the run"


def why_not(
    trainer: RunningTrainer, batches: Batches, form: Form
) -> str | None:
    """Why a run's steps cannot have a form; `None` if they can."""
    plugin = trainer.plugin
    reason = why_not_in_form(plugin, form, trainer.accumulation_steps)
    if reason is None and form.uses_xla and plugin.num_replicas > 1:
        reason = _why_not_on_each_replica(trainer)
    if reason is None and form is Form.XLA_STACK:
        reason = batches.why_not_stacked()
        return reason and f"{form} needs batches of a known shape: {reason}"
    return reason


def _why_not_on_each_replica(trainer: RunningTrainer) -> str | None:
    """Why XLA cannot compile the gradients that each of several computes."""
    # XLA knows no reduction over the replicas of `tf.distribute`.
    if trainer.spec.has_own("train_step"):
        return "a train_step of its own may reduce over replicas anywhere"
    norm = keras.layers.BatchNormalization
    for layer in all_layers(trainer.model):
        if isinstance(layer, norm):
            return f"the layer {layer.name!r} reduces over replicas"
    return None


def _required(
    trainer: RunningTrainer, batches: Batches, choice: Choice
) -> Choice:
    """Makes sure that a form that the run must have can be had."""
    reason = why_not(trainer, batches, choice.form)
    if reason is None and choice.form.uses_xla:
        reason = why_unusable(trainer, batches, choice.form)
    if reason is not None:
        raise UserError(
            f"jit_compile: the step cannot be compiled as {choice.form}, "
            f"because {choice.why}: {reason}. A run whose --jit_compile is "
            "graph needs no XLA."
        )
    return choice


def _cached(
    trainer: RunningTrainer, batches: Batches, legal: list[Form], key: str
) -> Choice | None:
    """What an equal run has measured, if it can be had."""
    found = form_cache.load(key)
    if found is None or found.best not in legal:
        return None
    if found.best.uses_xla and why_unusable(trainer, batches, found.best):
        return None
    is_only = legal == [Form.GRAPH]
    return _measured(
        found,
        NOTHING_ELSE if is_only else "it was the fastest in an earlier run",
    )


def _fixed(form: Form, why: str) -> Choice:
    return Choice(form=form, steps_per_loop=STEPS_PER_LOOP, why=why)


def _measured(timing: Timing, why: str) -> Choice:
    rate = timing.steps_per_second.get(timing.best, 0.0)
    length = next(
        (n for n in _LENGTHS if n <= _LOOP_SECONDS * rate), STEPS_PER_LOOP
    )
    return Choice(
        form=timing.best,
        steps_per_loop=length,
        why=why,
        steps_per_second=timing.steps_per_second,
    )
