"""Several tasks in one process, for tests."""

import threading

from tests.conformance.running import free_ports
from trainer.strategy.cluster.spec import Cluster


def in_threads(*functions):
    """Calls functions at the same time; what each returned or raised."""
    results = [None] * len(functions)

    def call(i):
        try:
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error

    threads = [
        threading.Thread(target=call, args=(i,)) for i in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def workers(count, *, away=0):
    """The cluster as each of some workers has it; the first ones are away."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count + away)]
    there = [f"worker {i}" for i in range(away, count + away)]
    return [
        Cluster({"worker": addresses}, "worker", i, "test").among(there)
        for i in range(away, count + away)
    ]
