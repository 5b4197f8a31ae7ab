"""Topologies that use what a topology has; traces.py says how they meet with their tests.

- `effects-<pid>`: each time that a record had an effect on the world;
- `calls-<pid>`: each call of a bolt, with its place and perhaps its moment;
- `news-<pid>`: what hooks and bolts were told, and the first record of each partition.
"""

import asyncio
from collections import Counter
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Bolt, Hooks, Record, Topology, bolt, reference
from headrace.sinks import DeltaSink, KafkaDeadLetters
from tests.acceptance.traces import TOPIC, Lines, Trouble, check, note, text

BATCH_SECONDS = 0.05
AT_MOST_ONCE_RATE = 4_000.0
KEYS = 17  # of each partition
WORKERS = 40
CALL_SECONDS = 0.005
FAILS_EVERY = 50
FAILURES = 2  # of a record that fails
CODES = 3
ENRICHED_RATE = 200.0

_tries: Counter[str] = Counter()


def _made(name: str) -> Topology:
    made = Topology(name)
    made.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))
    return made


def _fail_first(place: str, times: int) -> None:
    _tries[place] += 1
    if _tries[place] <= times:
        raise Trouble(place)


# At most once


@bolt
def has_an_effect(record: Record) -> str:
    note("effects", text(record))
    check(text(record))
    return text(record)


at_most_once = Topology("at-most-once", reliability="at-most-once")
_effects = at_most_once.source(TOPIC, records_per_second=AT_MOST_ONCE_RATE).then(has_an_effect)
_effects.into(Lines(), batch_seconds=BATCH_SECONDS)
at_most_once.dead_letters.into(KafkaDeadLetters(f"{TOPIC}.dead"))


# In order, key by key


@bolt
async def is_called_in_order(record: Record) -> str:
    note("calls", text(record))
    await asyncio.sleep(CALL_SECONDS)
    _fail_first(text(record), FAILURES if record.offset % FAILS_EVERY == 0 else 0)
    return text(record)


keyed = _made("keyed")
_by_key = keyed.source(TOPIC).keyed_by(lambda each: (each.partition, each.offset % KEYS))
_by_key.then(is_called_in_order, workers=WORKERS).into(Lines(), batch_seconds=BATCH_SECONDS)


# Reference tables

airports = reference("airports.parquet", key="code", value="name", refresh_seconds=0.3)
countries = reference("countries.csv", key="code", value="name")
towns = reference("towns.delta", key="code", value="name")


class Named(TypedDict):
    offset: int
    country: str
    town: str


@bolt
def look_up(record: Record) -> str:
    return f"{text(record)} {airports.get(record.offset % CODES, 'nowhere')}"


@bolt(vectorised=True, columns=["value", "offset"])
def join(batch: pa.RecordBatch) -> pa.RecordBatch:
    offsets = batch["offset"]
    codes = pc.subtract(offsets, pc.multiply(pc.divide(offsets, CODES), CODES))
    found = airports.join(batch.append_column("code", codes), on="code")
    names = pc.fill_null(found["name"], "nowhere")
    rows = pc.binary_join_element_wise(pc.cast(batch["value"], pa.string()), names, " ")
    return batch.set_column(batch.schema.get_field_index("value"), "value", rows)


@bolt
def name_places(record: Record) -> Named:
    code = record.offset % CODES
    country, town = countries.get(str(code), "nowhere"), towns.get(code, "nowhere")
    return {"offset": record.offset, "country": country, "town": town}


enriched = _made("enriched")
enriched.uses(airports, countries, towns)
_places = enriched.source(TOPIC, records_per_second=ENRICHED_RATE)
_places.then(look_up).into(Lines("looked-up"), batch_seconds=BATCH_SECONDS)
_places.then(join).into(Lines("joined"), batch_seconds=BATCH_SECONDS)
_places.then(name_places).into(DeltaSink("named", schema=Named), batch_seconds=BATCH_SECONDS)


# Hooks


class News(Hooks):
    def started(self) -> None:
        note("news", "start")

    def stopped(self) -> None:
        note("news", "stop")

    def partition_assigned(self, topic: str, partition: int) -> None:
        note("news", f"{topic} {partition}: assigned")

    def partition_revoked(self, topic: str, partition: int) -> None:
        note("news", f"{topic} {partition}: revoked")


class Told(Bolt[Record, str]):
    def open(self) -> None:
        note("news", "open")
        self._begun: set[int] = set()

    def partition_assigned(self, topic: str, partition: int) -> None:
        note("news", f"{topic} {partition}: assigned, to the bolt")

    def process(self, record: Record) -> str:
        if record.partition not in self._begun:
            self._begun.add(record.partition)
            note("news", f"{record.topic} {record.partition}: begins")
        return text(record)

    def partition_revoked(self, topic: str, partition: int) -> None:
        note("news", f"{topic} {partition}: revoked, to the bolt")

    def close(self) -> None:
        note("news", "close")


hooked = _made("hooked")
hooked.hooks(News())
hooked.source(TOPIC).then(Told).into(Lines(), batch_seconds=BATCH_SECONDS)
