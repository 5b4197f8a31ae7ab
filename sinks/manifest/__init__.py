"""Folders of Parquet files with a log that says which of them are the table. No Spark."""
