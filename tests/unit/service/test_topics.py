"""What commands ask of Kafka and ZooKeeper from outside: in bounded time, and in clear words."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from rich.console import Console

from headrace import Record, Topology, bolt
from headrace.sinks import DiscardSink, MemoryDeadLetters
from partition.errors import KafkaUnavailable, StoreUnavailable, TopicMissing
from partition.interfaces import Log, StoredOffset, Topic
from partition.records import Partition, Position
from service.cli import common
from service.cli.common import opened_pipeline
from service.cli.offsets import OffsetRow, read_offsets, show_offsets
from service.config.settings import load
from tests.support.zookeeper import opened_transactions


@bolt
def keep(record: Record) -> int:
    return record.offset


def topology() -> Topology:
    made = Topology("t")
    made.source("t").then(keep).into(DiscardSink())
    made.dead_letters.into(MemoryDeadLetters())
    return made


def test_no_answer_of_kafka_is_said_in_words(monkeypatch):
    monkeypatch.setattr(common, "ASK_SECONDS", 0.01)
    with pytest.raises(KafkaUnavailable, match=r"no answer in 0\.01 seconds"):
        common.answer(Future())


def test_no_answer_of_the_store_is_said_in_words(monkeypatch):
    monkeypatch.setattr(common, "ASK_SECONDS", 0.01)
    with pytest.raises(StoreUnavailable, match=r"no answer in 0\.01 seconds; it may be"):
        common.done(Future(), "a move")


def test_kafka_s_own_error_is_not_changed():
    future: Future[None] = Future()
    future.set_exception(TopicMissing("t"))
    with pytest.raises(TopicMissing):
        common.answer(future)


def test_every_log_is_asked_for_before_the_first_is_waited_for(monkeypatch):
    asked: dict[Partition, Future[Log]] = {}

    def topic(_name: str) -> Future[Topic]:
        future: Future[Topic] = Future()
        future.set_result(Topic("t", "id", (0, 1, 2)))
        return future

    def log(partition: Partition) -> Future[Log]:
        asked[partition] = Future()
        if len(asked) == 3:
            for each, future in asked.items():
                future.set_result(Log(each.number, 100))
        return asked[partition]

    def nothing() -> None:
        pass

    def stored(partition: Partition) -> StoredOffset | None:
        if not partition.number:
            return None
        transactions = (
            opened_transactions(40, 50, 60, committed=7) if partition.number > 1 else None
        )
        return StoredOffset(Position(40), "t", epoch=2, transactions=transactions)

    catalogue = SimpleNamespace(topic=topic, log=log, open=nothing, close=nothing)
    store = SimpleNamespace(load=stored, open=nothing, close=nothing)
    monkeypatch.setattr(common, "ASK_SECONDS", 0.5)
    parts = SimpleNamespace(name="t", catalogue=catalogue, store=store)
    monkeypatch.setattr("service.wiring.wire", lambda *_: parts)
    config = load(None, {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}})
    with opened_pipeline(topology(), config) as pipeline:
        rows = read_offsets(pipeline, {})
    assert [(row.committed, row.epoch, row.log_start, row.lag) for row in rows] == [
        (None, None, 0, 100),
        (40, 2, 1, 60),
        (40, 2, 2, 60),
    ]
    assert [(row.committed_txid, row.open_txids) for row in rows] == [
        (None, ()),
        (None, ()),
        (7, (8, 9)),
    ]
    assert rows[2].as_json()["open_txids"] == (8, 9)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (OffsetRow("t[0]", 40, 2, None, 0, 1000), ["t[0]", "40", "-", "0", "1,000", "960", "2"]),
        (
            OffsetRow("t[0]", None, None, 3, 0, 9, 7, (8, 9)),
            ["t[0]", "-", "3", "0", "9", "9", "-", "7", "2"],
        ),
    ],
)
def test_transactions_are_shown_where_there_are_any(row, shown, capsys):
    show_offsets(Console(width=200), [row])
    out = capsys.readouterr().out
    assert ("txid" in out) is (row.committed_txid is not None)
    assert [cell.strip() for cell in out.splitlines()[3].split("\u2502")[1:-1]] == shown
