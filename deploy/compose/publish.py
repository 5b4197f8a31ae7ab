"""Fills docker-compose.yml's topic of flights, unless it is there: publish.py BOOTSTRAP TOPIC DEAD.

The topic of dead letters is made last, so that it says that all flights are published.
"""

import sys

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.flights.publish import publish

_SECONDS = 60.0


def main(bootstrap: str, topic: str, dead: str) -> None:
    """Publish, and say so. Raises what `publish` raises, and KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    found = admin.list_topics(timeout=_SECONDS).topics
    if dead in found:
        print(f"{topic} has its flights already")  # noqa: T201 - what the service logs
        return
    if topic in found:  # of a try that did not come to its end
        admin.delete_topics([topic])[topic].result(_SECONDS)
    total = publish(bootstrap, topic).total
    admin.create_topics([NewTopic(dead, 1, 1)])[dead].result(_SECONDS)
    print(f"{total:,} records are in {topic}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
