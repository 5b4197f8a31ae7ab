import base64
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.dead_letters.replay import ConcurrentOperator
from service.errors import ServiceError
from sinks.kafka.client import (
    Cluster,
    NotAccepted,
    ProducerFenced,
    RecordMetadata,
    TransactionalProducer,
)
from sinks.kafka.dead_letter_sink import KafkaDeadLetters
from sinks.kafka.messages import OutgoingMessage
from sinks.storage import Storage
from tests.support.committed_messages import committed_messages
from tests.support.patience import seconds
from tests.support.places import Folder, publish
from tests.support.raw_headers import RawRecord, send_raw
from topology.record import Record
from topology.sink import DeadLetter, SinkContext

pytestmark = pytest.mark.integration

WHY = ("--why", "the parser was mended")


class Said(NamedTuple):
    facts: dict[str, Any]
    error: BaseException | None
    out: str


class Place(Folder):
    def publish(self, *values: bytes, **more: Any) -> None:
        publish(self.kafka, self.name, values, partition=1, key=b"k", **more)

    def fail(self, *values: bytes) -> None:
        """Publish records, and write letters of them as a run would."""
        self.publish(*values)
        sink = KafkaDeadLetters(f"{self.name}.dead")
        sink.open(
            SinkContext(self.name, "dead", {"bootstrap.servers": self.kafka}, Storage(""), None)
        )
        for token, message in enumerate(self.records(self.name)):
            record = Record(message.value(), message)
            sink.send(DeadLetter(record, "no number", 1, "ValueError", "parse", 1), token)
        sink.flush(seconds(30))
        assert all(each.error is None for each in sink.poll())
        sink.close()

    def run(self) -> dict[str, Any]:
        done = self.headrace("run", "flow:topology", "--until-caught-up", "--json")
        assert done.code == ("more than half" in done.err), done.err
        return done.facts

    def letters(self, *words: str, as_json: bool = True) -> Said:
        more = ["--config", str(self.folder / "service.toml"), *(["--json"] if as_json else [])]
        ran = CliRunner(env={"COLUMNS": "160"}).invoke(
            app, ["dead-letters", words[0], "flow:topology", *words[1:], *more]
        )
        last = ran.stdout.splitlines()[-1] if ran.stdout else ""
        return Said(json.loads(last) if last.startswith("{") else {}, ran.exception, ran.output)

    def records(self, topic: str, number: int = 1) -> list[Any]:
        return [m for m in committed_messages(self.kafka, topic) if m.partition() == number]


@pytest.fixture
def place(tmp_path, topic, kafka, zookeeper, monkeypatch):
    name = topic(partitions=2)
    monkeypatch.setenv("TOPIC", name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flow", raising=False)
    yield Place(tmp_path, name, kafka.address, zookeeper.address)
    sys.modules.pop("flow", None)


def test_letters_are_listed_shown_sent_again_once_and_dropped(place):
    place.publish(b"1", b"bad", b"2")
    place.publish(b"\x1b[2Jworse", headers=[("trace", b"7")])
    place.run()
    listed = place.letters("list", "--step", "parse", "--since", "2h").facts
    assert listed["total"] == 2
    newest = max(listed["letters"], key=lambda each: each["record"]["offset"])
    assert newest["record"]["topic"] == place.name
    assert (newest["record"]["partition"], newest["record"]["offset"]) == (1, 3)

    shown = place.letters("show", newest["letter"], as_json=False).out
    assert "\\x1b[2Jworse" in shown
    assert "\x1b[2J" not in shown

    sent = place.letters("replay", "--every", *WHY, "--yes").facts
    assert sent["replayed"] == 2
    again = place.records(place.name)[4:]
    assert sorted(each.value() for each in again) == [b"\x1b[2Jworse", b"bad"]
    worse = next(each for each in again if each.value() != b"bad")
    assert worse.key() == b"k"
    headers = dict(worse.headers())
    assert headers["trace"] == b"7"
    assert headers["headrace.origin.offset"] == b"3"
    assert headers["headrace.replays"] == b"1"
    assert place.letters("list").facts["passed_over"]["dealt_with"] == 2
    state = place.letters("show", newest["letter"], as_json=False).out
    assert f"replayed as {place.name}[1]@" in state
    assert "the parser was mended" in state

    # They fail once more, and do not go round in circles.
    place.run()
    listed = place.letters("list").facts
    assert listed["total"] == 2
    assert {each["replays"] for each in listed["letters"]} == {1}
    assert {each["origin"]["offset"] for each in listed["letters"]} == {1, 3}
    refused = place.letters("replay", "--step", "parse", *WHY, "--yes")
    assert isinstance(refused.error, ServiceError)
    assert "--max-replays 2 replays it once more" in str(refused.error)
    assert len(place.records(place.name)) == 6

    dropped = place.letters("drop", "--error", "ValueError", "--why", "rubbish", "--yes").facts
    assert dropped["dropped"] == 2
    assert place.letters("list").facts["total"] == 0
    assert place.letters("list", "--all").facts["total"] == 4


def test_missing_key_of_a_letter_is_read_from_the_source(place, kafka):
    kafka.create_topic(f"{place.name}.dead", 1, config={"max.message.bytes": "2000"})
    key = b"k" * 3_000
    send_raw(place.kafka, place.name, [RawRecord(b"bad", ((b"trace", b"7"),), key)], 1)
    place.run()
    (letter,) = place.letters("list").facts["letters"]
    assert (letter["key_bytes"], letter["value_bytes"]) == (3_000, 3)
    shown = place.letters("show", letter["letter"]).facts["content"]
    assert base64.b64decode(shown["key"]) == key
    assert place.letters("replay", "--every", *WHY, "--yes").facts["replayed"] == 1
    _bad, again = place.records(place.name)
    assert (again.key(), again.value(), dict(again.headers())["trace"]) == (key, b"bad", b"7")


def test_record_with_unreadable_headers_is_replayed_without(place):
    bad = RawRecord(b"bad", ((b"\xffname", b"7"),), b"k")
    send_raw(place.kafka, place.name, [bad], 1)
    place.run()
    (letter,) = place.letters("list").facts["letters"]
    assert "found the name b'\\xffname'" in letter["headers_error"]
    assert (
        "(left out) the record's headers"
        in place.letters("show", letter["letter"], as_json=False).out
    )
    sent = place.letters("replay", "--every", *WHY, "--yes").facts
    (row,) = sent["letters"].values()
    assert row["outcome"] == "replayed"
    assert row["note"].startswith("without its headers: the record's headers cannot be read")
    _bad, again = place.records(place.name)
    assert (again.key(), again.value()) == (b"k", b"bad")
    assert {name.split(".")[0] for name, _value in again.headers()} == {"headrace"}


def test_letters_replay_to_another_topic_at_a_rate(place, topic):
    other = topic(partitions=1)
    place.fail(b"a", b"b", b"c")
    some = ("0:0", "0:2", *WHY, "--yes", "--to", other, "--rate", "10")
    assert place.letters("replay", *some).facts["replayed"] == 2
    sent = place.letters("replay", "--every", *WHY, "--yes", "--to", other, "--rate", "10").facts
    assert sent["replayed"] == 1
    assert sorted(each.value() for each in place.records(other, 0)) == [b"a", b"b", b"c"]
    assert len(place.records(place.name)) == 3


def test_value_left_out_of_a_letter_is_read_from_its_topic(place, kafka):
    kafka.create_topic(f"{place.name}.dead", 1, config={"max.message.bytes": "2000"})
    place.fail(b"x" * 10_000)
    (letter,) = place.letters("list").facts["letters"]
    assert letter["value_bytes"] == 10_000
    shown = place.letters("show", letter["letter"], "--value-only", as_json=False).out
    assert shown == "x" * 10_000
    assert place.letters("replay", letter["letter"], *WHY, "--yes").facts["replayed"] == 1
    assert place.records(place.name)[-1].value() == b"x" * 10_000


def test_letters_behind_one_that_lacks_its_value_are_all_found(place, kafka, monkeypatch):
    monkeypatch.setattr("service.dead_letters.topic_reader._FETCH_MESSAGES", 10)
    kafka.create_topic(f"{place.name}.dead", 1, config={"max.message.bytes": "2000"})
    place.fail(b"x" * 10_000)
    place.fail(*(b"%d" % number for number in range(99)))
    planned = place.letters("replay", "--every", *WHY, "--dry-run").facts["letters"].values()
    assert [each["outcome"] for each in planned] == ["to_replay"] * 100


def test_whoever_begins_later_stops_the_one_that_is_at_it(place, monkeypatch):
    place.fail(b"bad")
    opened = TransactionalProducer.open

    def open_and_be_superseded(producer: TransactionalProducer) -> None:
        opened(producer)
        monkeypatch.undo()
        monkeypatch.setenv("TOPIC", place.name)
        monkeypatch.syspath_prepend(str(place.folder))
        assert place.letters("replay", "--every", *WHY, "--yes").facts["replayed"] == 1

    monkeypatch.setattr(TransactionalProducer, "open", open_and_be_superseded)
    late = place.letters("replay", "--every", *WHY, "--yes")
    # It has found the other's mark, or it is fenced: sent once in any case.
    assert isinstance(late.error, (ServiceError, ConcurrentOperator)), late
    assert [each.value() for each in place.records(place.name)] == [b"bad", b"bad"]


def test_a_transaction_is_there_whole_or_not_at_all(topic, kafka):
    name = topic(partitions=1)
    cluster = Cluster({"bootstrap.servers": kafka.address}, "broker_error", name)
    first, second = (TransactionalProducer(cluster, f"atomic-{name}", 1_000_000) for _ in range(2))
    first.open()

    def ends_in_the_middle(_: object) -> list[OutgoingMessage]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.commit([OutgoingMessage(name, b"lost", partition=0)], ends_in_the_middle)
    with pytest.raises(NotAccepted):
        first.commit([OutgoingMessage(name, b"no such partition", partition=7)])
    offsets: list[bytes] = []

    def offset_of(stored: Sequence[RecordMetadata]) -> list[OutgoingMessage]:
        offsets.extend(b"%d" % each.offset for each in stored)
        return [OutgoingMessage(name, each, partition=0) for each in offsets]

    first.commit([OutgoingMessage(name, b"there", partition=0)], offset_of)
    second.open()
    with pytest.raises(ProducerFenced):
        first.commit([OutgoingMessage(name, b"late", partition=0)])
    second.close()
    first.close()
    found = committed_messages(kafka.address, name)
    assert [each.value() for each in found] == [b"there", *offsets]
    assert [b"%d" % found[0].offset()] == offsets
