"""Tracing by OpenTelemetry: a record's way from its Kafka headers to the sink's txid."""
