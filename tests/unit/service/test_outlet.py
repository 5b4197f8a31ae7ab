"""The sink side of a pipeline: when a batch is handed to its writer."""

import queue
from typing import Any

import numpy as np

from headrace.sinks import MemorySink
from service.outlet import Outlet, Written
from tests.support.patience import seconds
from topology.steps import BatchPolicy, SinkStep


class Small(MemorySink[Any]):
    batch_rows = 2


def test_a_stand_in_gets_batches_as_large_as_those_of_the_sink_that_it_replaces():
    """The test kit puts sinks of its own in the places of a topology's."""
    kept = Small("kept")
    stands_in: MemorySink[Any] = MemorySink("stands in")
    written: queue.SimpleQueue[Written] = queue.SimpleQueue()
    outlet = Outlet(
        SinkStep("rows", kept, BatchPolicy(batch_rows=kept.batch_rows)),
        stands_in,
        written.put,
    )
    outlet.start()
    assert outlet.take(written.get(timeout=seconds(10)).done) is None
    one = np.ones(1, np.int64), np.ones(1, np.uint64)
    outlet.add(["a"], *one, now=0.0)
    assert not outlet.submit_due(0.0, flush=False)
    outlet.add(["b"], *one, now=0.0)
    assert outlet.submit_due(0.0, flush=False)
    ended = outlet.take(written.get(timeout=seconds(10)).done)
    assert ended is not None
    assert stands_in.rows == ["a", "b"]
    assert outlet.stop(10)
