"""Orders into SQLite exactly once: a target of one's own, behind `TransactionalForeachSink`.

Read `README.md`, then `target.py`.
"""
