"""Orders joined with a table of customers by Spark, into a Delta table, exactly once.

Read `README.md`, then `pipeline.py`.
"""
