"""Orders into SQLite exactly once: a sink of one's own. Read `README.md`, then `sink.py`."""
