"""Parquet files in a table's own place, written without Spark.

Who makes them visible is the table's log. PySpark is imported nowhere in here: executors use
it too.
"""
