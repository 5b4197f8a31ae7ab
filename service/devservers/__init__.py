"""Kafka, ZooKeeper and PostgreSQL as child processes: for a first run, tests and benchmarks."""
