"""The hand-written loop of suite enrich."""

from confluent_kafka import Consumer

from benchmarks.enrich_variants import commit


def test_commit_without_anything_new_does_nothing():
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "enrich"})
    try:
        commit(consumer)
    finally:
        consumer.close()
