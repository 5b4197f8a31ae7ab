"""The configuration: TOML, then HEADRACE_… variables over it, parsed once.

`HEADRACE_PIPELINE__DRAIN_SECONDS=10` sets `drain_seconds` of `[pipeline]`. Under
`[kafka]` and `[spark.conf]` every property of librdkafka and of Spark may stand; in
variables a property's dots are underscores (`HEADRACE_KAFKA__BOOTSTRAP_SERVERS`).
"""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from partition.assignment import AssignmentPolicy
from partition.delivery import AtLeastOnce, DeliveryFactory
from partition.interfaces import AtOffset, AtTimestamp, StartFrom
from partition.ledger import RetryPolicy
from partition.manager import MAX_PENDING, MAX_PENDING_BYTES, InFlightLimits
from partition.records import TransactionKind
from partition.recovery import OnTrouble, StartPolicy
from partition.replicas.heartbeat import check_name
from service.config import sources
from service.config.connections import Section, StorageConfig, ZooKeeperConfig
from service.errors import BadConfig
from service.membership import MembershipPolicy
from service.pipeline.failures import NullValues, ScreenPolicy
from sinks.spark.settings import refusals_of
from topology.masking import secrets_in
from topology.topology import can_name_offsets
from transactions.groups import RangePolicy
from transactions.transaction import TransactionPolicy

Scalar = str | int | float | bool
EngineName: TypeAlias = Literal["local", "spark"]


def _for_librdkafka(properties: Mapping[str, Scalar]) -> Iterator[sources.Fault]:
    from partition.kafka import librdkafka  # noqa: PLC0415 - imports confluent_kafka

    for name, value in properties.items():
        if name in librdkafka.FORCED:
            always = str(librdkafka.FORCED[name]).lower()
            yield name, sources.shown(name, value), f"no such key: it is always {always} here"
        elif reason := librdkafka.why_refused(name, value):
            known = librdkafka.documented_properties()
            if name in known or not known:
                allowed = known.get(name) or f"what librdkafka takes ({reason})"
                yield name, sources.shown(name, value), allowed
            elif "plugin.library.paths" not in properties:  # a plugin may know it
                near = sources.did_you_mean(name, known)
                yield name, f"an unknown key{near}", "librdkafka's properties"
    if not properties.get("bootstrap.servers"):
        yield "bootstrap.servers", "nothing", "host:port of one or more brokers"


def _for_a_driver(properties: Mapping[str, Scalar]) -> Iterator[sources.Fault]:
    return refusals_of({name: str(value) for name, value in properties.items()})


def _judged_by(
    faults_of: Callable[[Mapping[str, Scalar]], Iterator[sources.Fault]],
) -> BeforeValidator:
    """Check a table of a library's own properties, and raise all that is wrong in it at once."""

    def judged(table: Any) -> Any:
        properties = sources.flat(table)
        if not isinstance(properties, Mapping):
            return table
        scalars = {name: each for name, each in properties.items() if isinstance(each, Scalar)}
        faults = [
            (name, sources.shown(name, value), "a string, a number, true or false")
            for name, value in properties.items()
            if name not in scalars
        ]
        if faults := [*faults, *faults_of(scalars)]:
            raise sources.wrong_keys(*faults)
        return properties

    return BeforeValidator(judged)


KafkaProperties = Annotated[dict[str, Scalar], _judged_by(_for_librdkafka)]
SparkProperties = Annotated[dict[str, Scalar], _judged_by(_for_a_driver)]


def _start_from(value: Any) -> StartFrom:
    """A word, or a table with one whole number; a variable gives that as JSON or as text."""
    if value in ("earliest", "latest"):
        word: Literal["earliest", "latest"] = value
        return word
    table = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    if isinstance(table, Mapping) and len(table) == 1:
        kind, number = next(iter(table.items()))
        if kind in _STARTS and re.fullmatch(r"\d{1,18}", str(number)):
            return _STARTS[kind](int(number))
    raise ValueError("'earliest', 'latest', { timestamp_ms = N } or { offset = N }")


_STARTS: Mapping[str, Callable[[int], StartFrom]] = {
    "timestamp_ms": AtTimestamp,
    "offset": AtOffset,
}


def _pipeline_name(name: str | None) -> str | None:
    """Offsets lie under it, and a folder of the warehouse that is cleared."""
    if name and not all(map(can_name_offsets, name.split("/"))):
        parts = "not empty, '.' or '..', and have no control characters"
        raise ValueError(f"a name whose parts between '/' are {parts}")
    return name


class PipelineConfig(Section):
    """`[pipeline]`: reading and tracking of records."""

    name: Annotated[str | None, AfterValidator(_pipeline_name)] = Field(
        default=None, description="names the offsets; the topology's name if absent"
    )
    engine: EngineName = "local"
    start_from: Annotated[StartFrom, PlainValidator(_start_from)] = "earliest"
    ignore_stored_offsets: bool = False
    max_offset_behind: PositiveInt | None = None
    on_data_loss: OnTrouble = "halt"
    on_corrupt_record: OnTrouble = "halt"
    null_values: NullValues = "deliver"
    max_record_bytes: PositiveInt | None = None
    discover_interval_seconds: PositiveFloat = 30.0
    mirror_to_group: bool = False
    message_timeout_seconds: PositiveFloat = 30.0
    commit_interval_seconds: PositiveFloat = 1.0
    drain_seconds: PositiveFloat = 25.0
    max_pending: PositiveInt = MAX_PENDING
    max_pending_bytes: PositiveInt = MAX_PENDING_BYTES
    fetch_records: PositiveInt | None = None
    chunk_records: PositiveInt | None = None


class RetriesConfig(Section):
    """`[retries]`: retries of a record before it becomes a dead letter."""

    limit: NonNegativeInt = 5
    initial_seconds: PositiveFloat = 1.0
    multiplier: Annotated[float, Field(ge=1)] = 2.0
    max_seconds: PositiveFloat = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2


class DeadLettersConfig(Section):
    """`[dead_letters]`: the share of records at which the run ends."""

    max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    of_records: PositiveInt = 1_000


class TransactionsConfig(Section):
    """`[transactions]`: sizes of the transactions of a topology that is exactly-once."""

    max_active: PositiveInt = 3
    plan_records: PositiveInt = 16_000
    plan_seconds: PositiveFloat = 0.05


class SparkConfig(Section):
    """`[spark]`: Spark, which writes tables and, as the engine, processes records.

    A transaction ends at `transaction_records` of all partitions, or after `transaction_seconds`.
    """

    job_deadline_seconds: PositiveFloat = 300.0
    transaction_records: PositiveInt = 1_000_000
    transaction_seconds: PositiveFloat = 1.0
    max_active_transactions: PositiveInt = 2
    poll_seconds: PositiveFloat = 0.2
    conf: SparkProperties = Field(default_factory=dict)


def _replica_name(name: str | None) -> str:
    if name is None:
        return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "replica"
    return check_name(name)


class ReplicasConfig(Section):
    """`[replicas]`: this replica; all replicas that run share the partitions, by a plan."""

    name: Annotated[str | None, AfterValidator(_replica_name), Field(validate_default=True)] = (
        Field(default=None, description="of this replica; the host's name if absent")
    )
    beat_seconds: PositiveFloat = 0.5
    handover_seconds: PositiveFloat | None = Field(
        default=None, description="at most; 0.6 of the session timeout if absent"
    )


class HttpConfig(Section):
    """`[http]`: /metrics and /health on one port; 0 takes a free one, absent serves none."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    show_errors: bool = Field(default=True, description="whether texts of errors are shown there")


class LogsConfig(Section):
    """`[logs]`: level and format."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class TracingConfig(Section):
    """`[tracing]`: spans of records for a collector of OpenTelemetry's; off without an endpoint.

    A record with a sampled `traceparent` among its headers is traced; of those without one,
    `sample_ratio`. `headers` go with each request, best from the variable
    `HEADRACE_TRACING__HEADERS`, as they hold secrets.
    """

    endpoint: str | None = Field(
        default=None, description="OTLP over HTTP, such as http://collector:4318/v1/traces"
    )
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    service_name: str = "headrace"
    headers: SecretStr | None = Field(default=None, description="name=value,name=value")

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_a_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                message = "http:// or https://, a host, and no user; secrets go into 'headers'"
                raise ValueError(message)
        return endpoint

    @field_validator("headers")
    @classmethod
    def _headers_have_their_form(cls, headers: SecretStr | None) -> SecretStr | None:
        text = "" if headers is None else headers.get_secret_value()
        if text and not all(part.partition("=")[0].strip() for part in text.split(",")):
            raise ValueError("name=value,name=value")
        if not text.isascii() or not text.isprintable():
            raise ValueError("printable ASCII characters")
        return headers

    def pairs(self) -> dict[str, str]:
        parts = [part.partition("=") for part in self._text.split(",") if part]
        return {name.strip(): value.strip() for name, _, value in parts}

    def secrets(self) -> list[str]:
        return [each for each in (self._text, *self.pairs().values()) if each]

    @property
    def _text(self) -> str:
        return "" if self.headers is None else self.headers.get_secret_value()


class Config(Section):
    """The whole configuration of a run, frozen."""

    pipeline: PipelineConfig = PipelineConfig()
    retries: RetriesConfig = RetriesConfig()
    dead_letters: DeadLettersConfig = DeadLettersConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    kafka: KafkaProperties = Field(description="a table with 'bootstrap.servers'")
    zookeeper: ZooKeeperConfig
    storage: StorageConfig = StorageConfig()
    spark: SparkConfig = SparkConfig()
    replicas: ReplicasConfig = ReplicasConfig()
    http: HttpConfig = HttpConfig()
    logs: LogsConfig = LogsConfig()
    tracing: TracingConfig = TracingConfig()

    def secrets(self) -> list[str]:
        return [
            *secrets_in(self.kafka),
            *self.zookeeper.secrets(),
            *self.storage.secrets(),
            *secrets_in(self.spark.conf),
            *self.tracing.secrets(),
        ]

    @model_validator(mode="after")
    def _executors_trace_nothing(self) -> "Config":
        if self.tracing.endpoint is not None and self.pipeline.engine == "spark":
            found = 'with pipeline.engine = "spark"'
            raise sources.wrong_keys(("tracing.endpoint", found, '"local"'))
        return self

    @model_validator(mode="after")
    def _handover_ends_with_the_session(self) -> "Config":
        seconds, session = self.replicas.handover_seconds, self.zookeeper.session_timeout_seconds
        if seconds is not None and seconds >= session:
            allowed = f"less than zookeeper.session_timeout_seconds, {session:g}"
            raise sources.wrong_keys(("replicas.handover_seconds", f"{seconds:g}", allowed))
        return self

    def membership(self) -> MembershipPolicy:
        replicas, session = self.replicas, self.zookeeper.session_timeout_seconds
        return MembershipPolicy(
            str(replicas.name),
            replicas.beat_seconds,
            handover_seconds=replicas.handover_seconds or 0.6 * session,
            suspend_seconds=2 / 3 * session,
        )

    def assignment(self, delivery: DeliveryFactory[Any] = AtLeastOnce) -> AssignmentPolicy:
        pipeline = self.pipeline
        return AssignmentPolicy(
            start=StartPolicy(
                pipeline.start_from,
                ignore_stored_offsets=pipeline.ignore_stored_offsets,
                max_offset_behind=pipeline.max_offset_behind,
                on_data_loss=pipeline.on_data_loss,
                on_corrupt_record=pipeline.on_corrupt_record,
            ),
            limits=InFlightLimits(
                pipeline.max_pending, pipeline.max_pending_bytes, pipeline.max_record_bytes
            ),
            retries=RetryPolicy(**self.retries.model_dump()),
            delivery=delivery,
            discover_interval_seconds=pipeline.discover_interval_seconds,
            shared=True,
        )

    def transaction_policy(self, kind: TransactionKind) -> TransactionPolicy:
        """Return the policy of this kind; the in-flight limit holds all active transactions."""
        settings = self.transactions
        return TransactionPolicy(
            kind=kind,
            max_active=settings.max_active,
            records=max(1, self.pipeline.max_pending // settings.max_active),
            plan_records=settings.plan_records,
            plan_seconds=settings.plan_seconds,
        )

    def range_policy(self) -> RangePolicy:
        spark = self.spark
        return RangePolicy(
            records=spark.transaction_records,
            seconds=spark.transaction_seconds,
            max_active=spark.max_active_transactions,
        )

    def screen(self) -> ScreenPolicy:
        return ScreenPolicy(self.pipeline.null_values, self.pipeline.max_record_bytes)


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read the configuration: `overrides`, then variables, then the file.

    Tables are merged key by key. Raises BadConfig, which names the key, what was found
    and what is allowed, and has the other errors.
    """
    place = "environment" if path is None else str(path)
    errors = sources.wrong_names(os.environ, Config.model_fields)
    try:
        table = {} if path is None else sources.read_toml(path)
        config = Config(**sources.merged(table, sources.Variables(Config)(), overrides or {}))
    except RecursionError:
        found, allowed = "values nested too deep", "tables as deep as its keys"
        raise BadConfig(f"{place} or a variable", "(all)", found, allowed) from None
    except ValidationError as error:
        errors += sources.errors_of(error, Config, path, os.environ, sources.PREFIX)
    else:
        if not errors:
            return config
    # Not from the validation's error: its text shows the values, secret ones too.
    first, *errors[0].others = errors
    raise first
