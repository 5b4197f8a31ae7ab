"""Iceberg tables: files written by pyarrow, committed by Iceberg's own library in Spark's JVM."""
