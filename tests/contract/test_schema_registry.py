"""What serialisers with a Schema Registry wrote is read again, whatever the registry does."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from partition.records import Partition
from tests.support.messages import message
from tests.support.patience import seconds
from tests.support.registry import HttpWorld, MockWorld
from topology.bolt import Kind, kind_of
from topology.errors import InvalidTopology
from topology.payloads.documents import Limits
from topology.payloads.schema_registry import Registry, avro, json_schema, protobuf
from topology.record import Record, Reject, Retry

SECONDS = seconds(30.0)
TOPIC = "orders"
TOPIC_SUBJECTS = {"subject.name.strategy.type": "TOPIC"}


def record_schema(name: str, *fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


ORDER = record_schema(
    "Order",
    {"name": "id", "type": "long"},
    {"name": "sku", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    },
)
LIST = record_schema("Cell", {"name": "next", "type": ["null", "Cell"]})
DOCUMENT = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0}},
        "required": ["id"],
    }
)
VALUE = {
    "id": 7,
    "sku": "äpfel",
    "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "price": Decimal("1.50"),
}


@dataclass
class Order:
    id: int
    sku: str
    at: datetime
    price: Decimal


def message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="sku", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ORDER_MESSAGE = message_class()


@pytest.fixture(params=[MockWorld, HttpWorld], ids=["mock", "http"])
def world(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def http():
    made = HttpWorld()
    yield made
    made.close()


def context(headers=None):
    return SerializationContext(TOPIC, MessageField.VALUE, headers)


def avro_bytes(world, value=VALUE, schema=ORDER):
    return AvroSerializer(world.client, schema, conf=TOPIC_SUBJECTS)(value, context())


def record(value, headers=()):
    return Record(value, message(Partition(TOPIC, 3), 41, value, headers=list(headers)))


@contextmanager
def opened(bolt):
    bolt.open()
    try:
        yield lambda value, headers=(): bolt.process(record(value, headers))
    finally:
        bolt.close()


def until_it_is_no_retry(decode: Callable[[bytes], Any], value: bytes) -> Any:
    """As the retries do; a schema's first fetch may take longer than the owner waits."""
    for _ in range(1_000):
        try:
            return decode(value)
        except Retry as retry:
            if "being fetched" not in retry.reason:
                raise
    raise AssertionError("always a retry")


READER = record_schema(
    "Order", {"name": "id", "type": "long"}, {"name": "n", "type": "int", "default": 5}
)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (None, {}, VALUE),
        (None, {"blocking": True}, VALUE),
        (Order, {}, Order(**VALUE)),
        (None, {"schema": READER}, {"id": 7, "n": 5}),
    ],
)
def test_avro_is_read_as_it_was_written(world, kind, options, expected):
    """Also by a bolt that is opened again."""
    value = avro_bytes(world)
    bolt = avro(kind, registry=world.registry(), **options)
    for _ in range(2):
        with opened(bolt) as decode:
            assert until_it_is_no_retry(decode, value) == expected


def test_a_schema_that_refers_to_another_is_fetched_with_it(world):
    line = record_schema("Line", {"name": "n", "type": "int"})
    world.client.register_schema("line", Schema(line, "AVRO"))
    lines = {"name": "lines", "type": {"type": "array", "items": "Line"}}
    references = [SchemaReference("Line", "line", 1)]
    whole = Schema(record_schema("Basket", lines), "AVRO", references)
    value = avro_bytes(world, {"lines": [{"n": 1}, {"n": 2}]}, whole)
    with opened(avro(registry=world.registry())) as decode:
        assert until_it_is_no_retry(decode, value) == {"lines": [{"n": 1}, {"n": 2}]}


def test_json_is_read_and_validated(world):
    # Its import builds parsers for two seconds: not in every worker.
    from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415

    write = JSONSerializer(DOCUMENT, world.client, conf=TOPIC_SUBJECTS)
    value = write({"id": 7}, context())
    with opened(json_schema(registry=world.registry())) as decode:
        assert until_it_is_no_retry(decode, value) == {"id": 7}
        with pytest.raises(Reject, match="no json_schema value: -1 is less than the minimum of 0"):
            decode(value[:5] + b'{"id":-1}')
        with pytest.raises(Reject, match="invalid JSON at byte 6: found NaN"):
            decode(value[:5] + b'{"id":NaN}')
        with pytest.raises(Reject, match="nested 65 deep, expected at most 64"):
            decode(value[:5] + b"[" * 65 + b"]" * 65)


def test_protobuf_is_read_with_and_without_a_registry(world):
    write = ProtobufSerializer(
        ORDER_MESSAGE, world.client, conf={**TOPIC_SUBJECTS, "use.deprecated.format": False}
    )
    value = write(ORDER_MESSAGE(id=7, sku="a"), context())
    for registry in (world.registry(), None):
        with opened(protobuf(ORDER_MESSAGE, registry=registry)) as decode:
            assert until_it_is_no_retry(decode, value) == ORDER_MESSAGE(id=7, sku="a")
            with pytest.raises(Reject, match="no protobuf value: "):
                decode(value + b"\xff")
    deep = b"\x0b" * 1_000
    with opened(protobuf(ORDER_MESSAGE)) as decode, pytest.raises(Reject):
        decode(value[:6] + deep)


def test_a_schema_named_in_the_headers_is_found(world):
    conf = {**TOPIC_SUBJECTS, "schema.id.serializer": header_schema_id_serializer}
    headers: list[Any] = []
    write = AvroSerializer(world.client, ORDER, conf=conf)
    value = write(VALUE, context(headers))
    with opened(avro(registry=world.registry())) as decode:
        assert until_it_is_no_retry(lambda found: decode(found, headers), value) == VALUE


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: None, "the record has no value"),
        (lambda _: b"", "no avro value: .*size is 0 bytes"),
        (lambda value: value[:5], "no avro value: .*size is 5 bytes"),
        (lambda value: b"\x07" + value[1:], "no avro value: .*magic byte"),
        (lambda value: value[:-3], "no avro value: "),
        (lambda value: value[:6] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "no avro value: "),
        (lambda value: value + b" " * 2_000_000, "2000.* bytes, expected at most 1048576"),
        (lambda value: b"\0\0\0\3\xe7" + value[5:], "does not know the schema: .*404"),
    ],
)
def test_garbage_is_rejected_with_a_reason_and_harms_no_other_record(world, damage, reason):
    value = avro_bytes(world)
    with opened(avro(registry=world.registry())) as decode:
        for _ in range(2):
            with pytest.raises(Reject, match=reason):
                until_it_is_no_retry(decode, damage(value))
        assert until_it_is_no_retry(decode, value) == VALUE


def test_a_value_that_is_not_of_the_type_is_rejected(world):
    other = make_dataclass("Other", [("id", str)])
    value = avro_bytes(world)
    reason = r"no avro value: Expected `str`, got `int` - at `\$.id`"
    rejected = pytest.raises(Reject, match=reason)
    with opened(avro(other, registry=world.registry())) as decode, rejected:
        until_it_is_no_retry(decode, value)


def test_a_schema_whose_records_contain_themselves_is_refused_unless_asked_for(world):
    value = avro_bytes(world, {"next": {"next": None}}, LIST)
    with opened(avro(registry=world.registry())) as decode:
        for _ in range(2):
            with pytest.raises(Reject, match="'Cell' of the schema may contain itself"):
                until_it_is_no_retry(decode, value)
    with opened(avro(registry=world.registry(), recursive=True)) as decode:
        assert until_it_is_no_retry(decode, value) == {"next": {"next": None}}


def test_the_registry_is_asked_once_for_a_schema_and_never_by_the_owner(http):
    value = avro_bytes(http)
    http.asked.clear()
    with opened(avro(registry=http.registry())) as decode:
        for _ in range(100):
            assert until_it_is_no_retry(decode, value) == VALUE
            with pytest.raises(Reject, match="40403"):
                until_it_is_no_retry(decode, b"\0\0\0\0\x09" + value[5:])
    assert http.asked == ["/schemas/ids/1", "/schemas/ids/9"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, {"error_code": 50003, "message": "leader unknown"}),
        (500, b"<html>"),
        (200, b"<html>"),
        (200, {"id": 1}),
        (200, []),
        (404, b"<html>no such page</html>"),
        (404, {"message": "no Route matched"}),
        (401, {"error_code": 40101, "message": "Unauthorized"}),
        (429, {"error_code": 42901, "message": "slow down"}),
    ],
)
@pytest.mark.parametrize("blocking", [False, True], ids=["inline", "blocking"])
def test_an_answer_that_is_none_is_a_retry(http, status, body, blocking):
    value = avro_bytes(http)
    http.answer(lambda: (status, body))
    with opened(avro(registry=http.registry(), blocking=blocking)) as decode:
        with pytest.raises(Retry):
            decode(value)
        assert len(http.asked) == 2  # the producer's, and one


def test_an_outage_is_a_retry_and_what_is_cached_goes_on(http):
    known, unknown = avro_bytes(http), avro_bytes(http, {"next": None}, LIST)
    with opened(avro(registry=http.registry(), recursive=True)) as decode:
        assert until_it_is_no_retry(decode, known) == VALUE
        http.go_away()
        with pytest.raises(Retry, match="the schema registry gave no answer"):
            until_it_is_no_retry(decode, unknown)
        assert decode(known) == VALUE


def test_a_registry_that_hangs_holds_the_owner_up_for_its_patience_only(http):
    known, unknown = avro_bytes(http), avro_bytes(http, {"next": None}, LIST)
    asked, let_go = threading.Event(), threading.Event()

    def hang() -> tuple[int, Any]:
        asked.set()
        assert let_go.wait(SECONDS)
        return 503, {}

    bolt = avro(registry=http.registry(), recursive=True)
    with opened(bolt) as decode:
        assert until_it_is_no_retry(decode, known) == VALUE
        http.answer(hang)
        bolt._fetching._patience.spend(1e9)
        for _ in range(100):
            with pytest.raises(Retry, match="being fetched"):
                decode(unknown)
            assert decode(known) == VALUE
        assert asked.wait(SECONDS)
        let_go.set()
        http.answer(None)


def test_wrong_credentials_are_a_retry_that_says_so(http):
    value = avro_bytes(http)
    registry = http.registry(**{"basic.auth.user.info": "headrace:wrong"})
    with opened(avro(registry=registry)) as decode, pytest.raises(Retry, match="Unauthorized"):
        until_it_is_no_retry(decode, value)
    assert "wrong" not in repr(registry)


def test_a_property_the_client_does_not_know_is_an_error_when_the_bolt_is_opened(http):
    bolt = avro(registry=http.registry(colour="red"))
    with pytest.raises(ValueError, match="colour"):
        bolt.open()
    bolt.close()


def test_a_bolt_that_is_closed_leaves_no_thread_and_a_given_client_as_it_was():
    world = MockWorld()
    before, http = set(threading.enumerate()), world.client._rest_client
    bolt = avro(registry=world.registry())
    bolt.open()
    (thread,) = set(threading.enumerate()) - before
    bolt.close()
    bolt.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert world.client._rest_client is http


def test_a_registry_needs_a_url_or_a_client():
    for wrong in (Registry, lambda: Registry("http://a", client=MockWorld().client)):
        with pytest.raises(InvalidTopology, match="either a url or a client"):
            wrong()


def test_they_are_plain_bolts_unless_they_may_block():
    registry = Registry("http://127.0.0.1:1")
    assert kind_of(avro(registry=registry)) is Kind.FUNCTION
    assert kind_of(json_schema(registry=registry, blocking=True)) is Kind.BLOCKING
    assert protobuf(ORDER_MESSAGE, limits=Limits()).__name__ == "protobuf"


def test_a_record_that_is_nested_too_deep_would_end_a_process_without_the_refusal():
    code = (
        "import fastavro, io, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"schema = fastavro.parse_schema({json.loads(LIST)!r})\n"
        "fastavro.schemaless_reader(io.BytesIO(b'\\x02' * 1_000_000 + b'\\0'), schema)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=seconds(60), check=False
    )
    if done.returncode >= 0:
        pytest.fail("fastavro survives this now: the refusal can go")
