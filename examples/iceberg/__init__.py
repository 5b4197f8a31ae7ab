"""A web site's page views into an Iceberg table, exactly once.

Read `README.md`, then `pipeline.py`.
"""
