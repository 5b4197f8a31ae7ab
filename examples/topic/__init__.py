"""Card payments into a topic of alerts, exactly once: from Kafka into Kafka.

Read `README.md`, then `pipeline.py`.
"""
