"""The customers of a shop, a row for each that is there now, into a Delta table, exactly once.

Read `README.md`, then `pipeline.py`.
"""
