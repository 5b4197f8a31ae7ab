"""Kafka and ZooKeeper as child processes on 127.0.0.1: for a first run, tests and benchmarks."""
