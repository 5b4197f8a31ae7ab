"""Payloads: ready-made bolts that turn the bytes of records into values.

`plain` gives bytes and text, `documents` JSON, `columns` JSON as Arrow columns, `registry`
what a Schema Registry's serialisers wrote. `limits` is what stands in front of the parsers.
"""
