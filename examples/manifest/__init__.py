"""Readings of weather stations into Parquet files with a manifest, exactly once, without Spark.

Read `README.md`, then `pipeline.py`.
"""
