"""The policy of trials; `test_form_choice` makes real ones."""

import dataclasses

import pytest

from trainer.loop import form_timing
from trainer.step.forms import Form

STACK_FIRST = (Form.XLA_STACK, Form.XLA)
XLA_FIRST = (Form.XLA, Form.XLA_STACK)


@dataclasses.dataclass
class Timed:
    """What is known of a form: seconds of a step, as on a clock."""

    form: Form
    seconds: float


@pytest.mark.parametrize(
    ("graph", "order"), [(5e-4, STACK_FIRST), (5e-3, XLA_FIRST)]
)
def test_the_order_of_trials(graph, order):
    assert form_timing._by_promise(Timed(Form.GRAPH, graph)) == order


@pytest.mark.parametrize(
    ("graph", "xla", "hopeless"),
    [
        # Measured on two cores: the MLP, whose stack is twice as fast as its
        # graph; the embedding; the transformer; the conv net; ResNet-20.
        (1.06e-3, 1.39e-3, False),
        (18.8e-3, 10.7e-3, False),
        (54.3e-3, 50.8e-3, False),
        (4.7e-3, 13.3e-3, True),
        (134e-3, 224e-3, True),
        (1e-3, None, False),
    ],
)
def test_a_stack_is_hopeless_where_a_compiled_step_is_slow(
    graph, xla, hopeless
):
    timed = [Timed(Form.GRAPH, graph)]
    if xla is not None:
        timed.append(Timed(Form.XLA, xla))
    assert form_timing._is_hopeless(timed) is hopeless
