"""librdkafka as this package uses it: properties, errors, log lines, statistics, clients."""

import ctypes
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaException, cimpl
from confluent_kafka import KafkaError as Code

from partition.errors import (
    CorruptRecord,
    KafkaError,
    KafkaFailed,
    KafkaMisconfigured,
    KafkaUnavailable,
    OffsetOutOfRange,
    PartitionError,
    TopicMissing,
)
from partition.records import Partition

log = structlog.get_logger()

Scalar: TypeAlias = str | int | float | bool
Client = TypeVar("Client")

# What the promises rest on: an offset is committed by the offset store only, nothing is
# skipped silently, and the log's end is told with its offset.
FORCED: Mapping[str, Scalar] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
DEFAULTS: Mapping[str, Scalar] = {
    "group.id": "headrace",  # librdkafka demands one; only the mirror commits under it
    "session.timeout.ms": 6_000,  # there is no session: how long a mirrored commit may wait
    "check.crcs": True,  # without it a flipped bit on the broker's disk is delivered
    "queued.min.messages": 20_000,  # of all partitions; below that more are fetched
    "queued.max.messages.kbytes": 16_384,  # bounds the prefetch, over all partitions
    "max.partition.fetch.bytes": 524_288,  # of each partition, beyond that bound
    "fetch.queue.backoff.ms": 5,  # a drained queue is filled again at once
}
EOF = Code._PARTITION_EOF  # noqa: SLF001
ALL_DOWN = Code._ALL_BROKERS_DOWN  # noqa: SLF001
OUT_OF_RANGE = {
    Code._AUTO_OFFSET_RESET,  # noqa: SLF001
    Code._LOG_TRUNCATION,  # noqa: SLF001
    Code.OFFSET_OUT_OF_RANGE,
}
MISSING = {
    Code.UNKNOWN_TOPIC_OR_PART,
    Code.TOPIC_EXCEPTION,
    Code._UNKNOWN_TOPIC,  # noqa: SLF001
    Code._UNKNOWN_PARTITION,  # noqa: SLF001
}
# librdkafka tells these of a partition, and then reads on behind what it could not read.
UNREADABLE = {
    Code._BAD_MSG,  # noqa: SLF001
    Code._BAD_COMPRESSION,  # noqa: SLF001
    Code._NOT_IMPLEMENTED,  # noqa: SLF001 - a version of the record format
    Code._UNDERFLOW,  # noqa: SLF001
    Code.INVALID_MSG,
    Code.INVALID_MSG_SIZE,
    Code.MSG_SIZE_TOO_LARGE,
}
# That rights on the group are missing is not among them: librdkafka asks for its coordinator, but
# only what is mirrored to it needs one, and nothing depends on that.
_REFUSED = {
    Code._AUTHENTICATION,  # noqa: SLF001
    Code._FATAL,  # noqa: SLF001
    Code.SASL_AUTHENTICATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.UNSUPPORTED_SASL_MECHANISM,
    Code.ILLEGAL_SASL_STATE,
    Code.UNSUPPORTED_VERSION,
}

_REFUSED_PROPERTY = "headrace.probe"

# "Partition log truncation detected at offset 100 (leader epoch 0): broker end offset is 60
# (offset leader epoch 0)."; also "No epoch found ...: broker end offset is -1".
_TRUNCATION = re.compile(r"offset (\d+) \(leader epoch -?\d+\): broker end offset is (-?\d+)")
# "t [0]: topic does not exist (Broker: Unknown topic or partition)", of each partition.
_PARTITION = re.compile(r"(\S+) \[(\d+)\]: ")
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")  # librdkafka's own, before the text

CLOSE_SECONDS = 10.0
_LOG_SECONDS = 30.0
_SILENCE_SECONDS = 5.0  # and the time that a broker may hold a fetch back


def consumer_properties(properties: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the user's properties, over DEFAULTS, with FORCED.

    An admin client takes them too, and ignores a consumer's own.
    """
    return {**DEFAULTS, **properties, **FORCED}


def why_refused(name: str, value: Scalar) -> str:
    """Return why librdkafka refuses a property, "" if it does not. Makes no client."""
    try:
        Consumer({"group.id": "", name: value, _REFUSED_PROPERTY: ""})  # in this order
    except (AttributeError, KafkaException, TypeError, ValueError) as error:
        reason = code_of(error).str().strip()
    return "" if _REFUSED_PROPERTY in reason else reason


@cache
def documented_properties() -> Mapping[str, str]:
    """Return librdkafka's properties, with the values it documents, "" for any text.

    Empty where the library does not export them.
    """
    library, libc = ctypes.CDLL(cimpl.__file__), ctypes.CDLL(None)
    if not hasattr(library, "rd_kafka_conf_properties_show"):
        return {}
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as page:
        stream = ctypes.c_void_p(libc.fopen(page.name.encode(), b"w"))
        library.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        rows = re.findall(r"(?m)^([a-z][\w.]+) *\|[^|]*\| *([^|]*?) *\|", page.read().decode())
    return dict(rows)


def open_client(
    kind: Callable[[dict[str, Any]], Client], properties: Mapping[str, Any], log: "KafkaLog"
) -> Client:
    """Make a client, which contacts brokers in the background. Raises KafkaMisconfigured."""
    try:
        return kind({**properties, "logger": log})
    except KafkaException as error:
        raise KafkaMisconfigured(code_of(error).str()) from error


def close_client(client: Consumer) -> bool:
    """Close a client; return whether it ended in time. librdkafka can hang in it."""
    closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    return not closing.is_alive()


class Truncation(NamedTuple):
    offset: int  # the one that was checked
    diverged_at: int | None  # None: the broker does not know the epoch at all


def truncation(text: str) -> Truncation | None:
    """Parse an error's text; None for any other error."""
    found = _TRUNCATION.search(text)
    if found is None:
        return None
    end = int(found[2])
    return Truncation(int(found[1]), end if end >= 0 else None)


def partition_in(text: str) -> Partition | None:
    found = _PARTITION.match(text)
    return None if found is None else Partition(found[1], int(found[2]))


def is_refused(error: Code) -> bool:
    """Whether trying again cannot help: credentials, rights, a broken client."""
    return error.fatal() or error.code() in _REFUSED


def code_of(error: BaseException) -> Code:
    """Return the error that an exception of confluent_kafka carries."""
    carried = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return carried if isinstance(carried, Code) else Code(Code._FAIL, str(error))  # noqa: SLF001


def refusal(what: str, error: Code) -> KafkaFailed:
    return KafkaFailed(f"Kafka refuses {what}: {error.str()} ({error.name()})")


def asked(what: str, error: Code, topic: str = "") -> PartitionError:
    """Return the error of a question; `what` is what was asked: "for ..."."""
    if topic and error.code() in MISSING:
        return TopicMissing(topic)
    if is_refused(error):
        return refusal(what, error)
    return KafkaUnavailable(what, f"{error.str()} ({error.name()})")


def failure_of(partition: Partition, offset: int, error: Code) -> KafkaError:
    """Return the error that stopped a partition which was to be read on at an offset."""
    if error.code() in OUT_OF_RANGE:
        cut = truncation(error.str())
        diverged_at = None if cut is None else cut.diverged_at
        return OffsetOutOfRange(partition, offset, error.str(), diverged_at)
    if error.code() in MISSING:
        return TopicMissing(partition.topic)
    return CorruptRecord(partition, offset, error.str())


class KafkaLog:
    """A client's warnings, of all clients at most one line in 30 seconds per kind; counts others.

    `last` is the newest text, for whoever gives up; who has an answer empties it.
    """

    _next: ClassVar[dict[str, float]] = {}
    _held: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self.last = ""

    def log(self, _level: int, _form: str, facility: str, _client: str, text: str) -> None:
        if facility == "FAIL":  # logged by `error`, which may come too late to say why
            self.last = _THREAD.sub("", text)
        elif facility != "ERROR" and "is a consumer property and will be ignored" not in text:
            self.warn("kafka_client_message", facility, text)

    def error(self, error: Code) -> None:
        self.warn("kafka_trouble", error.name(), error.str())

    def warn(self, event: str, kind: str, text: str) -> None:
        if kind == "_ALL_BROKERS_DOWN":  # it says less than the one before
            return
        self.last = _THREAD.sub("", text)
        now = time.monotonic()
        if now < self._next.get(kind, 0.0):
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._next[kind] = now + _LOG_SECONDS
        log.warning(event, kind=kind, text=text, held_back=self._held.pop(kind, 0))


class Availability:
    """Whether brokers answer, by librdkafka's events and statistics. One that does is enough.

    No event tells of a frozen broker, which holds its connections and answers nothing (measured:
    none in 35 s), nor of one that is back while its logs are idle. The statistics show both.
    """

    def __init__(self) -> None:
        self.begin(0.0)

    def __bool__(self) -> bool:
        return self._heard and not self._outage and not self._silent

    def begin(self, held_back_seconds: float) -> None:
        """Begin anew; brokers may hold a fetch back so long."""
        self.patience_seconds = _SILENCE_SECONDS + held_back_seconds
        self._heard = False  # from a broker, ever
        self._outage = False  # told since a broker was last heard
        self._silent = False  # brokers owe answers, by the last statistics
        self._owed_since: dict[str, float] = {}  # microseconds of the statistics' clock
        self._told_to_wait: dict[str, float] = {}  # seconds, since the last statistics
        self._muted_until: dict[str, float] = {}  # by broker, as `_owed_since`

    def note_records(self) -> None:
        """Note that records came. They end no outage: they may have been prefetched."""
        self._heard = True

    def lose(self) -> None:
        self._outage = True  # all brokers are down

    def throttled(self, broker: str, seconds: float) -> None:
        """Note that a broker answers nothing for so long, as a quota is used up."""
        self._told_to_wait[broker] = max(seconds, self._told_to_wait.get(broker, 0.0))

    def take(self, told: Mapping[str, Any]) -> None:
        now = told.get("ts", 0)
        brokers = {
            name: broker
            for name, broker in told.get("brokers", {}).items()
            if broker.get("state") == "UP" and broker.get("source") != "logical"
        }
        for broker, seconds in self._told_to_wait.items():
            until = now + seconds * 1e6
            self._muted_until[broker] = max(until, self._muted_until.get(broker, until))
        self._told_to_wait = {}
        owed = {name: self._owed(name, broker, now) for name, broker in brokers.items()}
        self._owed_since = {
            name: since for name, since in owed.items() if brokers[name]["waitresp_cnt"]
        }
        self._silent = bool(owed) and all(
            now - max(since, self._muted_until.get(brokers[name].get("nodename", ""), since))
            >= self.patience_seconds * 1e6
            for name, since in owed.items()
        )
        if owed and not self._silent:
            self._heard, self._outage = True, False

    def _owed(self, name: str, broker: dict[str, Any], now: float) -> float:
        """Return since when a broker owes an answer; `now` if it owes none.

        A broker that is not asked, because all partitions are paused, owes nothing.
        """
        if not broker.get("waitresp_cnt"):
            return now
        answered: float = now - broker.get("rxidle", 0)
        return max(self._owed_since.get(name, now), answered)


class OpenTransactions:
    """Since when each log's last stable offset has stood still below its end, by the statistics.

    Readers of committed records get nothing from there on, and no error. Each transaction that
    ends moves it, so an offset that stands still is of one transaction.
    """

    def __init__(self) -> None:
        self._held: dict[Partition, tuple[int, float]] = {}  # the offset, and since when
        self._now = 0.0

    def take(self, told: Mapping[str, Any]) -> None:
        self._now = told.get("ts", 0) / 1e6
        held: dict[Partition, tuple[int, float]] = {}
        for topic, facts in told.get("topics", {}).items():
            for name, log in facts.get("partitions", {}).items():
                stable = log.get("ls_offset", -1)
                if not 0 <= stable < log.get("hi_offset", -1):
                    continue
                partition = Partition(topic, int(name))
                was = self._held.get(partition)
                same = was is not None and was[0] == stable
                held[partition] = was if same and was is not None else (stable, self._now)
        self._held = held

    def seconds(self, partition: Partition, position: int) -> float:
        stable, since = self._held.get(partition, (-1, 0.0))
        return self._now - since if stable == position else 0.0

    def clear(self) -> None:
        self._held = {}
