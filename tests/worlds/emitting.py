"""A process that reads a topic at most once and notes what it emits: something to be killed.

`python -m tests.worlds.emitting FACTS`, with FACTS as JSON. Every line of the notes is a
partition and an offset; a line is written the moment its record is emitted, and is there
still when the process has been killed.
"""

import json
import os
import random
import sys
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from partition.assignment import AssignmentPolicy
from partition.consumer import Consumer, ConsumerPolicy
from partition.delivery import CommitBeforeEmit
from partition.kafka.kafka_catalogue import KafkaCatalogue
from partition.kafka.kafka_fetcher import KafkaFetcher
from partition.manager import InFlightLimits
from partition.recovery import Loss, Ways
from partition.zookeeper.zookeeper_store import ZooKeeperStore

_IN_FLIGHT = 3  # chunks that are emitted and not resolved


def main() -> None:
    """Read until every record that was there at the start is resolved; then drain."""
    facts = json.loads(sys.argv[1])
    notes = os.open(facts["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reader = _reader(facts)
    reader.open()
    flying: deque[Any] = deque()
    while not reader.assignment.has_reached_goals:
        _turn(reader, notes, flying, reads=True)
    while reader.owes_emission or flying or not reader.offsets.is_done:
        _turn(reader, notes, flying, reads=False)
    reader.close()


def _turn(reader: Consumer, notes: int, flying: deque[Any], *, reads: bool) -> None:
    now = time.monotonic()
    reader.poll(now, opens=reads)
    emission = reader.next_chunk(now)
    if emission is None:
        if flying:
            reader.ack(flying.popleft())
        elif reads:
            reader.fetch(now, 0.01)
    else:
        chunk, record_ids = emission
        number = chunk.partition.number
        os.write(notes, b"".join(b"%d %d\n" % (number, at) for at in chunk.offsets.tolist()))
        flying.append(record_ids)
        if len(flying) > _IN_FLIGHT:
            reader.ack(flying.popleft())
    reader.commit(now, force=not reads)


def _reader(facts: dict[str, Any]) -> Consumer:
    kafka = {"bootstrap.servers": facts["kafka"]}
    topic = facts["topic"]
    return Consumer(
        KafkaFetcher(kafka),
        Ways(
            ZooKeeperStore(
                facts["zookeeper"], root=facts["root"], pipeline="p", topology_id="p",
                session_timeout_seconds=8.0,
            ),
            KafkaCatalogue(kafka),
            _durable,
        ),
        [topic],
        ConsumerPolicy(
            AssignmentPolicy(
                limits=InFlightLimits(max_pending=facts["max_pending"]), delivery=CommitBeforeEmit
            ),
            fetch_records=400,
            chunk_records=50,
            records_per_second={topic: facts["records_per_second"]},
        ),
        random.Random(),
    )  # fmt: skip


def _durable(_loss: Loss) -> "Future[None]":
    future: Future[None] = Future()
    future.set_result(None)
    return future


if __name__ == "__main__":
    main()
