"""Bad values end in a sentence, and soon; see `doors.py`.

Each is tried in this process: no import of TensorFlow, no signal and no file
of a run. `test_fuzz.py` starts real processes.
"""

import json
import time
import traceback

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import doors
from tests.json_values import JSON
from trainer.cli.main import register

MOST_SECONDS = 5
# Of these many, one is in the ordinary set.
ONE_IN = {
    "flags": 4,
    "launcher": 4,
    "gin": 4,
    "environment": 4,
    "arguments": 16,
    "calls": 64,
    "data": 32,
}


@pytest.fixture(autouse=True)
def registered():
    register()


def wrong(call):
    """What is wrong with how a call ends; `""` if nothing is."""
    begin = time.process_time()
    try:
        doors.sentence_of(call)
    except Exception:
        return f"{call.what}\n{traceback.format_exc(limit=-3)}"
    took = time.process_time() - begin
    return f"{call.what}: {took:.1f} s" if took > MOST_SECONDS else ""


def check(calls):
    found = [text for text in map(wrong, calls) if text]
    assert not found, "\n".join([f"{len(found)} of {len(calls)}", *found])


def test_there_are_enough():
    counts = {door: len(doors.calls_of(door)) for door in doors.DOORS}
    assert min(counts.values()) > 200, counts
    assert sum(counts.values()) > 5000


@pytest.mark.parametrize("door", doors.DOORS)
def test_some_of_each_door(door):
    check(doors.calls_of(door)[:: ONE_IN[door]])


@pytest.mark.long
@pytest.mark.parametrize("door", doors.DOORS)
def test_all_of_each_door(door):
    check(doors.calls_of(door))


HOSTS = st.lists(st.text(max_size=8) | st.just("a:1") | JSON, max_size=3)
JOBS = st.sampled_from(["worker", "chief", "ps", "evaluator", "master", "x"])
TASKS = st.fixed_dictionaries({}, optional={"type": JOBS | JSON, "index": JSON})
CONFIGS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.dictionaries(JOBS, HOSTS | JSON, max_size=3) | JSON,
        "task": TASKS | JSON,
    },
)
TEXTS = st.text(max_size=20)
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@FEW
@given(CONFIGS)
def test_any_tf_config(config):
    check([doors.tf_config(json.loads(json.dumps(config)))])


@FEW
@given(st.sampled_from(sorted(doors.CLUSTERS)), st.data())
def test_any_variables_of_a_scheduler(scheduler, data):
    whole = dict(doors.CLUSTERS[scheduler])
    changed = data.draw(st.sets(st.sampled_from(sorted(whole)), max_size=3))
    for name in changed:
        pieces = st.sampled_from(["0", "1", "-", ",", "[", "]", "(x", ")", "n"])
        whole[name] = data.draw(TEXTS | st.lists(pieces).map("".join))
    check([doors.of_scheduler(scheduler, whole, "", "")])


@FEW
@given(st.sampled_from(sorted(doors.FLAGS)), TEXTS)
def test_any_flag(name, text):
    check([doors.flag(name, text)])
