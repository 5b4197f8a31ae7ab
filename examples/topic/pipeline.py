"""Card payments from Kafka; those that someone should look at go to another topic, exactly once.

headrace run examples.topic.pipeline:topology --config service.toml
"""

from typing import TypedDict

import msgspec

from headrace import SKIP, Skip, Topology, bolt
from headrace.payloads import json
from headrace.sinks import KafkaDeadLetters, KafkaTopicSink

HOME = "NL"
LARGE_CENTS = 1_000_00
LARGE_ABROAD_CENTS = 200_00


class Payment(msgspec.Struct, frozen=True, gc=False):
    """One payment as it comes from Kafka."""

    id: int
    card: str
    country: str
    cents: int


class Alert(TypedDict):
    """A message of the topic `alerts`, as JSON."""

    payment: int
    card: str
    reason: str


@bolt
def screen(payment: Payment) -> Alert | Skip:
    """Let usual payments go; say of the others why someone should look at them."""
    is_abroad = payment.country != HOME
    if payment.cents <= (LARGE_ABROAD_CENTS if is_abroad else LARGE_CENTS):
        return SKIP
    reason = f"{payment.cents / 100:.2f} in {payment.country}"
    return {"payment": payment.id, "card": payment.card, "reason": reason}


def card_of(alert: Alert) -> str:
    """Alerts of one card go to one partition, so they can be read in order."""
    return alert["card"]


topology = Topology("card-alerts", reliability="exactly-once")
alerts = topology.source("payments").then(json(Payment)).then(screen)
alerts.into(KafkaTopicSink("alerts", key=card_of), name="alerts", batch_seconds=1.0)
topology.dead_letters.into(KafkaDeadLetters("payments.dead"))
