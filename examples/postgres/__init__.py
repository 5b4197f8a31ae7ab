"""Where parcels are, in a table of PostgreSQL with a row for each on its way, exactly once.

Read `README.md`, then `pipeline.py`.
"""
