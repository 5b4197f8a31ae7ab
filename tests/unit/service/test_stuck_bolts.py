import asyncio
import threading
import time

import pytest
from structlog.testing import capture_logs

from headrace import Bolt, Record, bolt
from partition.ledger import RetryPolicy
from service.observability.health import STALLED_SECONDS, HealthCheck
from service.observability.metrics import metric_values
from service.observability.snapshot import snapshot_of
from tests.support.pipeline import PATIENCE_SECONDS, PLACE, RETRY_SECONDS, Works

WORKERS = 4
TRIES = RetryPolicy(limit=1, initial_seconds=0.01, jitter=0)


class Hangs:
    def __init__(self, kind):
        self.gate = threading.Event()
        self.bolt = bolt(self.later) if kind == "async" else bolt(blocking=True)(self.now)

    def now(self, record: Record) -> str:
        if record.value == b"bad":
            self.gate.wait(PATIENCE_SECONDS)
        return (record.value or b"").decode()

    async def later(self, record: Record) -> str:
        while record.value == b"bad" and not self.gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:  # it will not be cancelled
                continue
        return (record.value or b"").decode()


def health_of(works, after_seconds):
    """What would be said of these figures later, with a loop that turns."""
    taken = snapshot_of(works.pipeline, time.monotonic() + after_seconds)
    return HealthCheck(lambda: taken, lambda: taken.taken_at)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_calls_that_never_return_use_up_the_workers(kind):
    """The record is a dead letter meanwhile; what comes next waits, and goes on if they return."""
    hangs = Hangs(kind)
    with Works(hangs.bolt, retries=TRIES, timeout_seconds=0.2) as works, capture_logs() as logs:
        try:
            works.send(b"bad", b"good")
            works.until(lambda: works.sink.rows == ["good"])  # by another worker
            assert health_of(works, 0).ready().ok
            works.now += 1.0  # the retry
            works.until(lambda: len(works.letters_sink.letters) == 1)
            (letter,) = works.letters_sink.letters
            step = letter.step
            assert letter.reason == f"bolt '{step}' took longer than its 0.2 seconds"
            works.send(b"waits")
            works.until(lambda: any(line["event"] == "bolt_calls_never_end" for line in logs))
            works.until(lambda: works.pipeline.statistics().runners[step].waiting == 1)
            shown = metric_values(snapshot_of(works.pipeline, works.now))
            assert shown[f'headrace_topology_abandoned_calls{{step="{step}"}}'] == 2
            assert shown[f'headrace_topology_timed_out_calls_total{{step="{step}"}}'] == 2
            said = (
                f"bolt '{step}' stands still: 2 calls past their time-out have not returned, and "
                "no more may be begun beside them"
            )
            soon, late = health_of(works, 1), health_of(works, STALLED_SECONDS + 30)
            assert soon.live().ok
            assert soon.ready().problems == late.live().problems == (said,)
        finally:
            hangs.gate.set()
        works.finish()
        works.until(lambda: works.pipeline.statistics().runners[step].late == 2)
        assert works.sink.rows == ["good", "waits"]
        assert health_of(works, STALLED_SECONDS + 30).ready().ok
    told = [line for line in logs if line["event"] == "bolt_calls_never_end"]
    assert [line["step"] for line in told] == [step]


class Cancels(Bolt):
    """An async bolt that cancels all tasks of its loop, for the first b"bad"."""

    def __init__(self, awaits):
        self.awaits = awaits
        self.is_done = False
        self.held = self.met = 0
        self.all_met = asyncio.Event()

    async def process(self, record, /):
        if record.value == b"met":
            self.met += 1
            if self.met % WORKERS == 0:
                self.all_met.set()
            await self.all_met.wait()  # it goes on once as many are here as there are workers
        elif not self.is_done:
            await self._meddle(record.value)
        return record.value

    async def _meddle(self, value):
        if value == b"held":
            self.held += 1
            await asyncio.sleep(PATIENCE_SECONDS)
        if self.awaits == "before":
            await asyncio.sleep(0)
        self.is_done = True
        self.all_met.clear()
        for task in asyncio.all_tasks():
            task.cancel()
        if self.awaits == "after":
            await asyncio.sleep(0)


@pytest.mark.parametrize("others", ["wait for calls", "are in calls"])
@pytest.mark.parametrize("awaits", ["before", "after", "never"])
def test_cancelling_all_tasks_stalls_nothing(awaits, others):
    """B13: calls that it cuts short are tried again, and as many run at once as before."""
    cancels = Cancels(awaits)
    retries = RetryPolicy(limit=5, initial_seconds=RETRY_SECONDS, jitter=0)
    with Works(cancels, workers=WORKERS, retries=retries) as works:
        works.send(*[b"met"] * WORKERS)  # then all workers are there, and wait
        works.finish()
        if others == "are in calls":
            works.send(*[b"held"] * (WORKERS - 1))
            works.until(lambda: cancels.held == WORKERS - 1)
        works.send(b"bad")
        works.until(lambda: cancels.is_done)
        works.send(*[b"met"] * WORKERS)
        sent = works.log.log_range(PLACE)[1]
        end = time.monotonic() + PATIENCE_SECONDS
        while works.stored < sent:
            assert time.monotonic() < end, works.ledger
            works.advance(RETRY_SECONDS if works.ledger.failed else 0.0)
            works.turn()
        assert len(works.sink.rows) == sent
        assert not works.letters_sink.letters
