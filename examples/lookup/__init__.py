"""Orders whose prices a service knows: an async HTTP look-up, with a cache in front of it.

Read `README.md`, then `pipeline.py`.
"""
