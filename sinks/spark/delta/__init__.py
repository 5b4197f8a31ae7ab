"""Delta Lake tables: files written by pyarrow, committed by Delta Kernel in Spark's JVM."""
