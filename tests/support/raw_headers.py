"""Records whose header names are any bytes: the client's own producer takes text only."""

import ctypes
from collections.abc import Iterable
from importlib.metadata import files
from typing import Any, NamedTuple

import confluent_kafka  # noqa: F401 - loads the libraries that librdkafka needs

_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS = 1, 3, 4, 5, 7, 10  # rd_kafka_vtype_t
_COPY = 2
_SECONDS = 30


class RawRecord(NamedTuple):
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    key: bytes | None = None


class _Memory(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("cstr", ctypes.c_char_p),
        ("i", ctypes.c_int),
        ("i32", ctypes.c_int32),
        ("mem", _Memory),
        ("headers", ctypes.c_void_p),
        ("pad", ctypes.c_char * 64),
    )


class _Part(ctypes.Structure):
    _fields_ = (("vtype", ctypes.c_int), ("u", _Union))


def send_raw(address: str, topic: str, records: Iterable[RawRecord], partition: int = 0) -> None:
    rdkafka = _library()
    conf = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
    said = ctypes.create_string_buffer(512)
    for name, value in ((b"bootstrap.servers", address.encode()), (b"acks", b"all")):
        assert rdkafka.rd_kafka_conf_set(conf, name, value, said, 512) == 0, said.value
    producer = ctypes.c_void_p(rdkafka.rd_kafka_new(0, conf, said, 512))
    assert producer, said.value
    try:
        for record in records:
            _produce(rdkafka, producer, topic, partition, record)
        assert rdkafka.rd_kafka_flush(producer, _SECONDS * 1000) == 0
    finally:
        rdkafka.rd_kafka_destroy(producer)


def _produce(rdkafka: Any, producer: Any, topic: str, partition: int, record: RawRecord) -> None:
    headers = ctypes.c_void_p(rdkafka.rd_kafka_headers_new(len(record.headers)))
    for name, value in record.headers:
        size = len(value or b"")
        rdkafka.rd_kafka_header_add(headers, name, len(name), value, size)
    parts = (_Part * 6)()
    for part, vtype in zip(
        parts, (_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS), strict=True
    ):
        part.vtype = vtype
    parts[0].u.cstr = topic.encode()
    parts[1].u.i32 = partition
    parts[2].u.mem = _Memory(record.value, len(record.value or b""))
    parts[3].u.mem = _Memory(record.key, len(record.key or b""))
    parts[4].u.i = _COPY
    parts[5].u.headers = headers
    assert not rdkafka.rd_kafka_produceva(producer, parts, len(parts)), record


def _library() -> Any:
    bundled = (each for each in files("confluent-kafka") or () if each.match("librdkafka*.so*"))
    rdkafka = ctypes.CDLL(str(next(bundled).locate()))
    for name in ("conf_new", "new", "headers_new", "produceva"):
        getattr(rdkafka, f"rd_kafka_{name}").restype = ctypes.c_void_p
    rdkafka.rd_kafka_header_add.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_ssize_t,
        ctypes.c_char_p,
        ctypes.c_ssize_t,
    )
    rdkafka.rd_kafka_produceva.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return rdkafka
