"""Try it: ten thousand payments, ten of them torn, through a Kafka of its own.

python -m examples.topic [--state-dir DIR]
"""

import random
import sys
from collections.abc import Iterator

import orjson
from confluent_kafka import Consumer, TopicPartition

from examples.running import Message, Outcome, Surroundings, arguments, run_example
from examples.topic.pipeline import topology

PAYMENTS = 10_000
TORN_EVERY = 1_000
PARTITIONS = 2
ANSWER_SECONDS = 20.0


def main() -> int:
    """Run it, and return the exit code."""
    options = arguments("topic", __doc__).parse_args()
    return run_example("topic", options.state_dir, _run)


def payments() -> Iterator[Message]:
    """The same payments in each run, by card; what is torn is no JSON."""
    rng = random.Random(1)  # noqa: S311 - it only has to look like payments
    for number in range(PAYMENTS):
        card = f"card-{rng.randrange(500)}"
        country = rng.choice(["NL"] * 8 + ["BE", "US"])
        cents = int(rng.lognormvariate(8.0, 1.6))
        value = orjson.dumps({"id": number, "card": card, "country": country, "cents": cents})
        yield card, value[:-9] if number % TORN_EVERY == 0 else value


def alerts_in(bootstrap: str) -> Iterator[bytes]:
    """The alerts that a reader of committed messages gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "people",
            "isolation.level": "read_committed",  # or it would see what is never committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition("alerts", number, 0) for number in range(PARTITIONS)])
        left = PARTITIONS
        while left:
            message = consumer.poll(ANSWER_SECONDS)
            if message is None:
                raise RuntimeError("the broker does not answer")
            if message.error() is None:
                yield message.value() or b""
            else:
                left -= 1  # the end of a partition
    finally:
        consumer.close()


def _run(here: Surroundings) -> Outcome:
    here.servers.kafka.create_topic("alerts", PARTITIONS)
    here.publish("payments", payments())
    account = here.run(topology)
    alerts = [orjson.loads(value) for value in alerts_in(here.servers.kafka.address)]
    gaps = []
    if len(alerts) != account.rows:
        gaps.append(f"the account has {account.rows} alerts, the topic {len(alerts)}")
    shown = [f"{alert['card']:<9} paid {alert['reason']}" for alert in alerts[:5]]
    return Outcome(account, gaps, [*shown, f"{len(alerts)} alerts of {account.read} payments"])


if __name__ == "__main__":
    sys.exit(main())
