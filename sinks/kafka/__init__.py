"""Rows and dead letters into Kafka topics."""
