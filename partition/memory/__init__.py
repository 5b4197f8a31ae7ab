"""Kafka and the offset store in memory."""
