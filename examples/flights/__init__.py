"""Flights of 2013: JSON from Kafka, enriched, as departures and arrivals in a table.

Read `README.md`, then `pipeline.py`.
"""
