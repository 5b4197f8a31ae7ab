"""What is asked of the cluster before messages are sent to it."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from sinks.broker_complaints import BrokerComplaints
from topology.errors import SinkFailed
from topology.sink import Scalar

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = structlog.get_logger()

_client_log = logging.getLogger("headrace.topic")  # else librdkafka writes to stderr itself

_ANSWER_SECONDS = 15.0


class Cluster:
    """A cluster's topics and their settings; `properties` are librdkafka's.

    What it is asked raises KafkaException when there is no answer.
    """

    def __init__(self, properties: Mapping[str, Scalar], topic: str) -> None:
        self._properties = properties
        self._complaints = BrokerComplaints("topic_broker_error", topic)

    def conf(self, **overrides: Scalar) -> dict[str, Any]:
        """Properties of a client, its names with `_` for `.`, and where it logs."""
        given = {name.replace("_", "."): value for name, value in overrides.items()}
        return {
            **self._properties,
            **given,
            "error_cb": self._complaints.take,
            "logger": _client_log,
        }

    @property
    def trouble(self) -> str:
        """What its clients complained of last, to be added to an error's text."""
        last = self._complaints.last
        return last and f" ({last})"

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is none."""
        # Asking for the one topic could make the broker create it with other settings.
        from confluent_kafka import KafkaException  # noqa: PLC0415 - see sinks/__init__

        admin = self._admin()
        try:
            found = admin.list_topics(timeout=_ANSWER_SECONDS).topics.get(topic)
        except KafkaException:
            admin.poll(0)  # for why there is no answer
            raise
        return 0 if found is None else len(found.partitions)

    def setting(self, topic: str, name: str) -> str:
        """A setting of a topic, or the broker's that holds for it."""
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # noqa: PLC0415

        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._admin()  # must outlive the answer
        answers = admin.describe_configs([asked], request_timeout=_ANSWER_SECONDS)
        return str(answers[asked].result(_ANSWER_SECONDS)[name].value)

    def create_compacted(self, topic: str) -> None:
        """Create a topic of one partition that keeps the last message of each key."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

        config = {"cleanup.policy": "compact"}
        new = NewTopic(topic, num_partitions=1, replication_factor=-1, config=config)
        admin = self._admin()
        created = admin.create_topics(
            [new], operation_timeout=_ANSWER_SECONDS, request_timeout=_ANSWER_SECONDS
        )
        try:
            created[topic].result(_ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info("transactions_topic_created", topic=topic)

    def require_compacted(self, topic: str) -> None:
        """Create the topic unless it is there. Raises SinkFailed when it would lose claims."""
        if not self.partitions(topic):
            self.create_compacted(topic)
            return
        found = self.partitions(topic)
        policy = self.setting(topic, "cleanup.policy")
        if found != 1 or policy != "compact":
            message = (
                f"topic '{topic}' has {found} partitions and cleanup.policy={policy}; one that "
                "keeps transactions must have 1 and 'compact'"
            )
            raise SinkFailed(message)

    def _admin(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        return AdminClient(self.conf())


def said(error: Exception) -> str:
    """The text of a KafkaException's KafkaError, or of any other error."""
    inner = error.args[0] if error.args else error
    text = getattr(inner, "str", None)
    return str(text()) if callable(text) else str(error)
