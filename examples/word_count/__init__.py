"""How often each word was said, kept in a table that outlives the run, exactly once.

Read `README.md`, then `pipeline.py`.
"""
