"""How workers of different speed share the steps of a host loop.

Workers and their clock are simulated: what a real one takes for a step is a
number here, so that every division is the same in each run.
"""

import itertools
import logging

import pytest

from trainer_plugins.strategies.parameter_server.step_ranges import StepRanges

POLL = 0.05


class Cluster:
    """Workers that take ranges of steps, in simulated time.

    Attributes:
        seconds: what each worker takes for a step; may be changed.
        done: worker, steps, begin and end of each range.
    """

    def __init__(self, seconds, **options):
        self.seconds = list(seconds)
        self.now = 0.0
        self.step = 0
        self.done = []
        self.ranges = StepRanges(
            num_workers=len(seconds), clock=lambda: self.now, **options
        )

    def loop(self, num_steps, lost=()):
        """One host loop; `lost` are workers that die in their first range."""
        steps = range(self.step, self.step + num_steps)
        ranges = self.ranges
        ranges.begin(steps)
        free, busy, lost = set(range(len(self.seconds))), {}, set(lost)
        while not ranges.are_done:
            for worker in sorted(free):
                if taken := ranges.take_now(worker):
                    free.remove(worker)
                    end = self.now + len(taken) * self.seconds[worker]
                    busy[worker] = end, self.now, taken
            # To the next end, or to where one that waits considers again.
            ends = [end for end, _, _ in busy.values()]
            self.now = min([*ends, *[self.now + POLL][: len(free)]])
            for worker, (end, begin, taken) in list(busy.items()):
                if end > self.now:
                    continue
                del busy[worker]
                if worker in lost:
                    ranges.give_back(worker)
                    continue
                ranges.finish(worker, list(taken))
                self.done.append((worker, taken, begin, end))
                free.add(worker)
        found = [found for _, found in sorted(ranges.results.items())]
        assert list(itertools.chain(*found)) == list(steps)
        self.step += num_steps

    def rate(self, num_steps, loops):
        """Steps a second, once the workers are known."""
        for _ in range(5):
            self.loop(num_steps)
        begin = self.now
        for _ in range(loops):
            self.loop(num_steps)
        return num_steps * loops / (self.now - begin)


def staleness(done):
    """The most steps of others that overlap a range."""
    return max(
        sum(
            len(steps)
            for other, steps, since, until in done
            if other != worker and since < end and until > begin
        )
        for worker, _, begin, end in done
    )


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("slower", [10, 1000])
@pytest.mark.parametrize("num_steps", [1, 4, 100])
def test_a_slow_worker_takes_nothing_from_the_others(
    workers, slower, num_steps
):
    others = [0.2] * (workers - 1)
    alone = Cluster(others).rate(num_steps, loops=20)
    slowed = Cluster([*others, slower * 0.2]).rate(num_steps, loops=20)
    assert slowed >= 0.8 * alone


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("most", [None, 1, 5])
@pytest.mark.parametrize("bound", [None, 0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("slower", [1, 10])
def test_no_range_is_staler_than_allowed(workers, most, bound, slower):
    seconds = [0.1] * (workers - 1) + [0.1 * slower]
    cluster = Cluster(seconds, steps_per_closure=most, max_staleness=bound)
    for num_steps in (1, 7, 24, 24):
        cluster.loop(num_steps)
    if bound is not None:
        assert staleness(cluster.done) <= bound
    if most is not None:
        assert max(len(steps) for _, steps, _, _ in cluster.done) <= most


def test_equal_workers_do_their_shares_in_a_few_ranges():
    cluster = Cluster([0.2, 0.2])
    cluster.loop(100)
    begin = cluster.now
    cluster.done.clear()
    cluster.loop(100)
    assert cluster.now - begin < 1.1 * 100 * 0.2 / 2
    assert len(cluster.done) <= 12


def test_others_do_the_range_of_a_worker_that_is_lost():
    cluster = Cluster([0.2, 0.2, 2.0])
    for _ in range(5):
        cluster.loop(30)
    cluster.loop(30, lost=[1])
    cluster.loop(30, lost=[0, 2])


def test_a_worker_that_was_slow_for_a_while_gets_its_share_again():
    cluster = Cluster([0.1, 10.0])
    for _ in range(5):
        cluster.loop(10)
    cluster.seconds[1] = 0.1
    for _ in range(1000):
        cluster.loop(10)
    cluster.done.clear()
    cluster.loop(10)
    assert sum(len(steps) for worker, steps, _, _ in cluster.done if worker) > 3


def test_a_worker_that_prepares_is_not_called_slow(caplog):
    cluster = Cluster([0.1, 5.0])
    cluster.loop(4)
    cluster.seconds[1] = 0.1
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            cluster.loop(4)
            cluster.ranges.warn_of_slow()
    assert not caplog.records


def test_a_slow_worker_is_named_once(caplog):
    cluster = Cluster([0.1, 2.0, 0.1])
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            cluster.loop(100)
            cluster.ranges.warn_of_slow()
    (said,) = caplog.records
    assert said.getMessage().startswith("worker 1 is slow: it takes 2 s")
