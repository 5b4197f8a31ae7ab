"""Counts what really arrived, without asking the pipeline."""

import json
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition


def rows_in_table(table: Path) -> int:
    """Rows of a Delta table to which was only ever appended, from its log and its files."""
    rows = 0
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                rows += pq.read_metadata(table / action["add"]["path"]).num_rows
    return rows


def dead_letters_in(bootstrap: str, topic: str) -> int:
    """Records in a topic nothing is ever deleted from."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "proof", "log_level": 3})
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            for number in numbers
        ]
    finally:
        consumer.close()
    return sum(end[1] - end[0] for end in ends if end is not None)
